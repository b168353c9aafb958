"""Checks `fsccl-info forecast`. usage: info_forecast_test.py INFO PERF FOLDER-OF-TOPOLOGIES"""

import itertools
import json
import pathlib
import sys
import tempfile

from page import page_of
from program import expect
from program import run as run_program

info, perf, samples = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])


def run(*arguments, status=0):
    return run_program(info, 'forecast', *arguments, status=status, timeout=120)


def forecast(*arguments):
    return json.loads(run(*arguments, '--json'))


# The slots are compared with the pool that really plans them, in a dry run, and agree within 1 %.
worst = 0
for model in ('llama-3.2-1b', 'llama-3-8b', 'mixtral-8x7b'):
    for more, same in (
        ((), ()),
        (('--prefetch', '0'), ('--prefetch', '0')),
        (('--layout', 'flat'), ('--layout', 'flat')),
        (('--by-parameter',), ('--by-parameter',)),
        (('--keep', 'budget', '2G'), ('--keep', '2G')),
    ):
        step = json.loads(
            run_program(
                perf,
                'step',
                '--model',
                model,
                '--ranks',
                '2',
                '--dry-run',
                '--steps',
                '3',
                '--json',
                *more,
                timeout=240,
            )
        )
        experts = ('--experts-per-token', '2') if model in ('mixtral-8x7b', 'gpt-oss-120b') else ()
        memory = forecast(model, '--ranks', '2', '--machine', 'here', *experts, *same)['memory']
        off = memory['planned_slots_bytes'] / step['planned_bytes'] - 1
        expect(abs(off) <= 0.01, f'{model} {more}: {memory} against {step["planned_bytes"]}')
        worst = max(worst, abs(off))
print(f'slots against fsccl-perf step --dry-run: {100 * worst:.3f} % at most')

# Every column of the text has a unit, and so does every name in the JSON.
text = run('llama-3-8b', '--ranks', '64', '--search', '--what-if', '--scaling', '--startup')
for words in (
    'gather ms',
    'memory of a rank, at most',
    'bytes',
    'step ',
    '/s a rank',
    'MFU',
    'against now',
    'not known:',
    'sockets at once',
    'over network',
    '(estimated)',
    'against now  fits',
    'shards over     step s',
):
    expect(words in text, f'{words}: {text}')
answer = forecast('llama-3-8b', '--ranks', '64', '--what-if', '--scaling', '--search')
step = answer['step']
expect(step['low_s'] < step['step_s'] < step['high_s'], step)
expect(abs(step['exposed_s'] + step['hidden_s'] - step['communication_s']) < 1e-9, step)
expect([point['ranks'] for point in answer['scaling']][-1] == 100000, answer['scaling'])
owners = sum(
    answer['memory'][name + '_bytes']
    for name in (
        'shards',
        'sharded_gradients',
        'optimizer',
        'parameter_slots',
        'gradient_slots',
        'activations',
        'transports',
        'context',
    )
)
expect(owners == answer['memory']['total_bytes'], answer['memory'])

# A setup that does not fit is reported, with what to change.
text = run('llama-3-70b', '--ranks', '64', '--sequence', '8192')
expect('DOES NOT FIT' in text and 'the shortest of what fits' in text, text)
expect('full checkpointing' in text, text)
# So is a smaller batch with more micro-batches, if that is faster, and where the setup itself ranks.
batch = ('llama-3-8b', '--ranks', '16', '--sequence', '8192')
large = forecast(*batch, '--batch', '2', '--accumulate', '4')
expect('micro-batches of 1 sequences instead of 2 (8 of them)' in large['advice'], large['advice'])
best = large['search'][0]
expect((best['batch'], best['accumulate']) == (1, 8), best)
same = forecast(*batch, '--batch', '1', '--accumulate', '8')
expect(same['step']['step_s'] >= 0.999 * best['step_s'], f'{same["step"]} {best}')
now = [row for row in large['search'] if row['now']]
expect(len(now) == 1 and not now[0]['fits'] and now[0]['batch'] == 2, now)

# Bytes over NCCL's rings: a rank receives each element once, and each host's come from another.
ring = forecast(*batch, '--carrier', 'nccl')['step']['bytes_per_rank']
alone = forecast('llama-3-8b', '--ranks', '8', '--sequence', '8192', '--carrier', 'nccl')
received = alone['step']['bytes_per_rank']['nvlink'] * (15 / 16) / (7 / 8)
expect(abs(ring['network'] + ring['nvlink'] - received) < 0.001 * received, f'{ring} {received}')
expect(abs(ring['nvlink'] / ring['network'] - 7) < 0.001, ring)

# Every machine that is known by name gives two hosts, with the memory that its file states.
for file in sorted((samples.parents[1] / 'perf/machines').glob('*.json')):
    stated = json.loads(file.read_text(encoding='utf-8'))
    expect(stated['name'] == file.stem and 'https://' in stated['source'], f'{file}')
    ranks = str(2 * stated['ranks_per_host'])
    answer = forecast('llama-3-8b', '--machine', file.stem, '--ranks', ranks)
    expect(answer['machine']['hosts'] == 2, f'{file}: {answer["machine"]}')
    expect(answer['memory']['limit_bytes'] == stated['memory_bytes'], f'{file}')

# The ranks of this machine share its memory.
here = [
    forecast('llama-3.2-1b', '--machine', 'here', '--ranks', str(ranks))['memory']['limit_bytes']
    for ranks in (1, 64)
]
expect(here[0] // 64 == here[1], f'{here}')

# The rate of this machine is that of a good kernel: a plain loop reaches 0.005 TFLOP/s.
text = run('llama-3.2-1b', '--machine', 'here', '--compute', 'fp32', '--ranks', '1')
expect('products of matrices in fp32 on one core with' in text, text[:600])
expect(float(text.split(' TFLOP/s')[0].split()[-1]) > 0.01, text[:600])

# Units that alternate have a line each, and a network is of no use to ranks of one host.
text = run('deepseek-v3', '--experts-per-token', '8', '--ranks', '256')
expect('layers.3-60.attention ' in text and 'layers.3-60.experts ' in text, text)
expect('layers.0-2 ' in text and 'layers.4' not in text, text)
text = run('llama-3-8b', '--what-if')
expect('network half as fast: all ranks are on one host' in text, text)

# The assumed speeds are told, and in which case a name of a model is written does not matter.
text = run('Llama-3-8B', '--ranks', '16', '--topology', samples / 'dgx_h100.json')
for words in ('989 TFLOP/s', 'by nvlink within a host', 'GB/s one way of a host', 'dgx_h100.json'):
    expect(words in text, f'{words}: {text[:800]}')

# A measured step makes the interval narrow, and the forecast right.
measured = forecast('llama-3-8b', '--ranks', '64', '--measured', '0.9')
expect(abs(measured['step']['step_s'] - 0.9) < 1e-6, measured['step'])
expect(measured['interval']['computation'] == 0.1, measured['interval'])

# The communication that fsccl-perf step has measured makes the forecast of the links right.
links = forecast('llama-3-8b', '--ranks', '64', '--measured-communication', '0.5')
expect(abs(links['step']['communication_s'] - 0.5) < 1e-9, links['step'])
expect(links['interval']['communication'] == 0.1, links['interval'])

# Numbers are decimal.
setup = forecast('llama-3-8b', '--ranks', '016', '--sharding', '08')['setup']
expect((setup['ranks'], setup['shard_over']) == (16, 8), setup)

# A topology can be the source of hosts and links.
answer = forecast('llama-3-8b', '--ranks', '16', '--topology', samples / 'dgx_h100.json')
expect(answer['machine']['ranks_per_host'] == 8, answer['machine'])
expect(answer['machine']['hosts'] == 2, answer['machine'])

with tempfile.TemporaryDirectory() as folder:
    page = pathlib.Path(folder) / 'page.html'
    parts = ('--search', '--what-if', '--startup')
    text = run('llama-3.2-1b', '--ranks', '16', '--report', page, *parts, '--codec-ratio', '3')
    for words in ('bf16 gathered', 'adam with 8 bytes', 'slots by unit', '3 times fewer bytes'):
        expect(words in text, f'the setup: {words}: {text[:600]}')
    text = run('llama-3.2-1b', '--ranks', '8', '--codec-ratio', '3')
    expect('no use of the codec' in text, text[:600])
    text = run('llama-3.2-1b', '--ranks', '16', '--sharding', 'host')
    expect('copies of shards summed by' in text, text)
    html = page.read_text(encoding='utf-8')
    for words in ('shards over ranks', 'what if', 'twice the ranks', 'the start', 'exposed, s'):
        expect(words in html, f'{words} on the page')
    expect('_per_s' not in html.split('<table')[-1], 'no raw keys')
    expect(page_of(html).count['figure'] == 3, 'the charts')
    for words in ('two streams', 'Memory of a rank', 'on more ranks', '<svg', 'layers.15'):
        expect(words in html, f'{words}: {html[:2000]}')
    other = pathlib.Path(folder) / 'more.json'
    other.write_text('{"batch": 3, "machine": {"efficiency": 0.2}}', encoding='utf-8')
    answer = forecast('llama-3-8b', '--config', other)
    expect(answer['setup']['batch'] == 3, answer['setup'])
    expect(answer['step']['efficiency'] == 0.2, answer['step'])

    # A copy of the shards on each host: the ranks of a host are those of the machine, wherever it
    # says them, and on each number of ranks.
    hosts_of_4 = pathlib.Path(folder) / 'hosts_of_4.json'
    hosts_of_4.write_text('{"machine": {"ranks_per_host": 4}}', encoding='utf-8')
    for where, shared in (
        ((), 8),
        (('--topology', samples / 'dgx_h100.json'), 8),
        (('--config', hosts_of_4), 4),
    ):
        answer = forecast('llama-3-8b', '--ranks', '64', '--sharding', 'host', *where)
        expect(answer['setup']['shard_over'] == shared, f'{where}: {answer["setup"]}')
    small = forecast('llama-3-8b', '--ranks', '4', '--sharding', 'host', '--scaling')
    large = forecast('llama-3-8b', '--ranks', '64', '--sharding', 'host', '--scaling')
    expect(small['scaling'][-1] == large['scaling'][-1], f'{small["scaling"]}')

    # Cards that are slower to the network than to their host.
    def two_hosts(name, link, second_card=50):
        """Returns the file of two hosts of a GPU and a card each."""
        path = pathlib.Path(folder) / name
        hosts = json.loads(run_program(info, 'topology', '--json'))
        hosts['hosts'] = [
            {
                'name': host,
                'children': [
                    {'kind': 'gpu', 'name': 'gpu0'},
                    {'kind': 'nic', 'name': 'card', 'gb_per_s': rate},
                ],
            }
            for host, rate in (('h0', 50), ('h1', second_card))
        ]
        hosts['links'] = [{'a': 'h0/card', 'b': 'h1/card', 'gb_per_s': link}]
        path.write_text(json.dumps(hosts), encoding='utf-8')
        return path

    steps = [
        forecast('llama-3-8b', '--ranks', '2', '--topology', two_hosts('net.json', link))['step'][
            'step_s'
        ]
        for link in (50, 0.125)
    ]
    expect(steps[1] > 2 * steps[0], f'a slow link makes the step longer: {steps}')

    # The slowest way between the GPUs of a host counts, whatever their order is.
    def three_gpus(name, rates):
        path = pathlib.Path(folder) / name
        gpus = [{'kind': 'gpu', 'name': f'gpu{i}'} for i in range(3)]
        pairs = ((0, 1), (0, 2), (1, 2))
        links = [
            {'a': f'h/gpu{a}', 'b': f'h/gpu{b}', 'gb_per_s': rate}
            for (a, b), rate in zip(pairs, rates)
        ]
        hosts = {'fsccl_topology': 1, 'hosts': [{'name': 'h', 'children': gpus}], 'links': links}
        path.write_text(json.dumps(hosts), encoding='utf-8')
        return path

    for rates in itertools.permutations((100, 300, 300)):
        answer = forecast(
            *('llama-3-8b', '--ranks', '3', '--topology', three_gpus('gpus.json', rates))
        )
        expect(answer['machine']['within_gb_per_s'] == 100, f'{rates}: {answer["machine"]}')

    # The error names what is wrong, and what to do.
    def written(name, text):
        path = pathlib.Path(folder) / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    # A page lacks what the configuration leaves out, and --tflops is of the configuration's type.
    for part in ('scaling', 'timeline'):
        less = written(f'{part}.json', json.dumps({part: False}))
        run('llama-3-8b', '--report', pathlib.Path(folder) / 'less.html', '--config', less)
    wide = written('wide.json', '{"compute": "fp32"}')
    answer = forecast('llama-3-8b', '--tflops', '67', '--config', wide)
    expect(answer['machine']['tflops'] == 67, f'{answer["machine"]}')

    bad = written('bad.json', '{')
    calibrations = [
        written(f'calibration{i}.json', f'{{"calibration": {{"step_s": 1, "configuration": {c}}}}}')
        for i, c in enumerate(('{"rank": 8}', '[]'))
    ]
    apart = json.loads(two_hosts('apart.json', 50).read_text(encoding='utf-8'))
    apart['hosts'].append({**apart['hosts'][1], 'name': 'h2'})
    weight = '["weight", [8, 8]]'
    twins = [
        written(f'twins{i}.json', f'{{"name": "m", "units": [{units}]}}')
        for i, units in enumerate(
            (
                f'{{"name": "a", "params": [{weight}]}}, {{"name": "a", "params": [{weight}]}}',
                f'{{"name": "a", "params": [{weight}, {weight}]}}',
            )
        )
    ]
    halves = written('halves.json', '{"machine": {"ranks_per_host": 1.5}}')
    cut = written('cut.json', '{"machine": {"tflops": {"bf16": 1e-320}}}')
    wrong_files = [
        (written('deep.json', '[' * 200_000 + ']' * 200_000), 'deep.json'),
        (written('list.json', '[]'), 'an object was expected'),
        (written('number.json', '5'), 'an object was expected'),
        (written('empty.json', ''), 'it is empty'),
        (written('html.json', '<html>'), 'line 1, column 1'),
        (written('twice.json', '{"ranks": 8, "ranks": 16}'), 'the key "ranks" more than once'),
        (written('utf8.json', b'{"name": "\xff"}'), 'line 1, column'),
        (pathlib.Path(folder), 'folder'),
        ('/dev/zero', 'is a device: give a file'),
    ]
    for arguments, status, words in (
        (('llama-4-9b',), 2, ['no model is named', 'llama-3-8b']),
        (('llama-3-8b', '--machine', 'cray-1'), 2, ['no machine is named', 'dgx-h100']),
        (('llama-3-8b', '--ranks', '60'), 1, ['give 56 or 64 ranks']),
        (('llama-3-8b', '--sharding', '3'), 1, ['must divide the ranks', 'give 2 or 4']),
        (('llama-3-8b', '--tflops', '0'), 2, ['--tflops', 'no number from 1e-06 to']),
        (('llama-3-8b', '--tflops', '1e-300'), 2, ['--tflops', 'no number from 1e-06 to']),
        (('llama-3-8b', '--measured', 'nan'), 2, ['--measured', 'no number above 0']),
        (('llama-3-8b', '--efficiency', '0'), 2, ['--efficiency', 'no number from 0.001 to 1']),
        (('llama-3-8b', '--efficiency', 'nan'), 2, ['--efficiency', 'no number']),
        (('llama-3-8b', '--efficiency', '0.5', '--measured', '1'), 2, ['excludes']),
        (('llama-3-8b', '--codec-ratio', 'nan'), 2, ['--codec-ratio', 'from 1 to 100']),
        (('llama-3-8b', '--codec-rate', '3'), 1, ['without a codec', '--codec-ratio']),
        (('llama-3-8b', '--codec', 'zip'), 2, ['--codec', 'zip not in']),
        (('llama-3-8b', '--codec', 'int8', '--codec-ratio', '2'), 2, ['excludes']),
        (('llama-3-8b', '--memory-limit', '0'), 2, ['--memory-limit 0', 'leave it out']),
        (('llama-3-8b', '--memory-limit', '80'), 2, ['80 bytes', 'such as 80G']),
        (('llama-3-8b', '--tflops', '989000'), 2, ['no number from 1e-06 to 100000']),
        (('llama-3-8b', '--sharding', '8B'), 2, ['give full, host or a number of ranks']),
        (('llama-3-8b', '--ranks', '64', '--sharding', '128'), 1, ['give 64, or']),
        (('llama-3-8b', '--measured', '1000000'), 1, ['not ms']),
        (('llama-3-8b', '--experts-per-token', '2'), 1, ['no unit has experts']),
        (('mixtral-8x7b', '--experts-per-token', '9'), 1, ['has 8 experts']),
        (('llama-3-8b', '--config', calibrations[0]), 1, ['has "rank"', 'known are']),
        (('llama-3-8b', '--config', calibrations[1]), 1, ['configuration must be an object']),
        (('llama-3-8b', '--config', halves), 1, ['must be a whole number']),
        (
            ('llama-3-8b', '--config', written('null.json', '{"ranks": null}')),
            2,
            ['"ranks" is null: leave the key out'],
        ),
        (
            (*('llama-3-8b', '--efficiency', '0.2', '--config'), calibrations[0]),
            2,
            ['--efficiency and "calibration"', 'leave one of the two out'],
        ),
        (
            (
                *('llama-3-8b', '--ranks', '3', '--topology'),
                written('apart.json', json.dumps(apart)),
            ),
            1,
            ['has no way from h0 to h2: add their links'],
        ),
        (('llama-3-8b', '--report', '/dev/full'), 2, ['/dev/full']),
        (('llama-3-8b', '--config', cut), 1, ['must be from 1e-06']),
        (('llama-3-8b', '--machine', 'here', '--ranks', '5000'), 2, ['which may have 4096']),
        (('llama-3-8b', '--report', ''), 2, ['a file has no name']),
        (('llama-3-8b', '--report', '-'), 2, ['give the name of a file']),
        (('llama-3-8b', '--report', '--json'), 2, ['--json is an option']),
        (('llama-3-8b', '--measured', '900'), 1, ['seconds (not ms)']),
        ((twins[0],), 1, ['also the name of an earlier unit', 'the model is', 'twins0.json']),
        ((twins[1],), 1, ['also the name of an earlier parameter', 'twins1.json']),
        (('llama-3-8b', '--topology', '\udcff'), 2, ['not UTF-8']),
        (
            (
                *('llama-3-8b', '--ranks', '2', '--topology'),
                two_hosts('unlike.json', 50, second_card=1),
            ),
            1,
            ['differ', '1 GB/s'],
        ),
        (('llama-3-8b', '--config', halves, '--report', halves), 2, ['would be replaced']),
        (('llama-3-8b', '--ranks', '2000000'), 2, ['--ranks', 'no whole number from 1 to 1048576']),
        (('llama-3-8b', '--report', folder), 2, ['fsccl-info: --report', 'is a directory']),
        (('llama-3-8b', '--sharding', 'some'), 2, ['give full, host or a number of ranks']),
        (('llama-3-8b', '--compute', 'int3'), 1, ['give --tflops (in a file "tflops")']),
        (('llama-3-8b', '--measured', '0.0001'), 1, ['faster than the machine says']),
        (('gpt-oss-120b',), 1, ['give --experts-per-token (in a file']),
        (('llama-3-8b', '--by-parameter', '--keep', '1G'), 1, ['--by-parameter (in a', '--keep (']),
        (
            ('llama-3-8b', '--ranks', '1K'),
            2,
            ['--ranks', '1K is no whole number from 1 to', 'digits'],
        ),
        (('llama-3-8b', '--sharding', '0x8'), 2, ['give full, host or a number of ranks']),
        (
            ('llama-3-8b', '--topology', samples / 'virtual_machine.xml'),
            1,
            ['has no GPU', 'another "device"'],
        ),
        (('llama-3-8b', '--topology', samples / 'mixed_hosts.json'), 1, ['differ', 'alike']),
        (('llama-3-8b', '--keep', 'lots'), 2, ['--keep lots: not a size']),
        ((bad,), 1, ['bad.json: not JSON at line 1']),
        (('./none.json',), 1, ['none.json: cannot be opened']),
        *(
            ((*before, file), 1, [words])
            for before in ((), ('llama-3-8b', '--machine'), ('llama-3-8b', '--config'))
            for file, words in wrong_files
            if file != pathlib.Path(folder) or before != ('llama-3-8b', '--machine')
        ),
    ):
        said = run(*arguments, status=status)
        expect(all(word in said for word in words), f'{arguments}: {words}: {said}')
