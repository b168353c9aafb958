"""Checks `fsccl-info explain`, on machines that need not exist. usage: info_explain_test.py PROGRAM
FOLDER-OF-TOPOLOGIES"""

import json
import os
import pathlib
import re
import sys
import tempfile

from program import expect
from program import run as run_program

program, samples = sys.argv[1], pathlib.Path(sys.argv[2])
RATE = '"copy_ns_per_kib": 40'
MEASURED = (
    '"exchange_ns": %s, "sizes": [256, 2048, 131072], "slots_ns": [60, 250, 11000], '
    '"slots_past_caches_ns": [400, 700, 18000], "read_ns": null, ' + RATE
)


def run(*arguments, status=0, **variables):
    return run_program(
        program, 'explain', *arguments, status=status, timeout=60, env={**os.environ, **variables}
    )


def explained(*arguments, **variables):
    answer = json.loads(run(*arguments, '--json', **variables))
    chosen = [one for one in answer['candidates'] if one['chosen']]
    expect(chosen and all(one['predicted_us'] >= 0 for one in answer['candidates']), answer)
    return answer, [one['plan'] for one in chosen]


# These calls are on one host: small and large ones, the table and its marks.
answer, chosen = explained('all_gather', '8', '--ranks', '2')
expect(chosen == ['all_gather_inline'] and 'signals' in answer['why'], answer)
answer, chosen = explained('all_gather', '4M', '--ranks', '4')
expect('all_gather_direct' in chosen and answer['why'] == 'least predicted time', answer)
expect(
    answer['ranks'] == 4
    and answer['hosts'] == 1
    and answer['costs_from'] == 'table'
    and answer['transport'] == 'shm',
    answer,
)
text = run('all_gather', '4M', '--ranks', '4')
expect(
    '* all_gather_direct' in text
    and 'least predicted time' in text
    and 'costs from the table' in text,
    text,
)

# The program also predicts the time of gathers with a codec on a typical network. On one host there
# is nothing to predict.
answer, chosen = explained('all_gather', '256M', '--hosts', '2', '--ranks-per-host', '1')
codec = answer['gather_codec']
expect(
    codec['kind'] == 'delta'
    and codec['bytes_plain'] == 128 << 20
    and codec['copy_bytes_per_host'] == 256 << 20,
    codec,
)
expect(
    codec['bytes_coded'] < codec['bytes_plain'] / 3
    and codec['declines'] == (codec['coded_us'] >= codec['plain_us']),
    codec,
)
blocks = {row['kind']: row for row in answer['block_codecs']}
expect(
    set(blocks) == {'int8', 'fp8', 'mxfp8'}
    and all(row['bytes_plain'] == 128 << 20 for row in blocks.values())
    and 1.9 < blocks['int8']['bytes_plain'] / blocks['int8']['bytes_coded'] < 2
    and all(row['pays'] == (row['coded_us'] < row['plain_us']) for row in blocks.values()),
    blocks,
)
sums = explained('reduce_scatter', '256M', '--hosts', '2', '--ranks-per-host', '1')[0]
sums = {row['kind']: row for row in sums['reduce_codecs']}
expect(
    set(sums) == {'bf16', 'int8', 'int4'}
    and 7 < sums['int4']['bytes_plain'] / sums['int4']['bytes_coded'] < 8,
    sums,
)
expect('gather_codec' not in explained('all_gather', '256M', '--ranks', '2')[0], 'on one host')
expect(
    all(
        ('coding takes longer' in row['why']) == (not row['pays'])
        for row in [*blocks.values(), *sums.values()]
    ),
    [blocks, sums],
)
# The ranks of a host share its coding, so it takes them less time.
many = explained('all_gather', '256M', '--hosts', '2', '--ranks-per-host', '4')[0]
expect(
    many['gather_codec']['coded_us'] < codec['coded_us']
    and many['gather_codec']['plain_us'] == codec['plain_us'],
    [many['gather_codec'], codec],
)
# The text has a line for each codec, with the reason.
for operation, kinds in (('all_gather', ('delta', *blocks)), ('reduce_scatter', sums)):
    text = run(operation, '256M', '--hosts', '2', '--ranks-per-host', '1')
    for kind in kinds:
        expect(
            re.search(rf'^  {kind} .*(coding takes longer|the bytes that it saves)', text, re.M),
            text,
        )
expect(
    f'keeps a copy of {256 << 20} bytes on each host'
    in run('all_gather', '256M', '--hosts', '2', '--ranks-per-host', '1'),
    'memory',
)
expect('codecs of units' not in run('all_gather', '256M', '--ranks', '2'), 'on one host')

# On several hosts there are flat candidates, and candidates by hosts with their stages.
answer, chosen = explained('all_gather', '4M', '--hosts', '2', '--ranks-per-host', '2')
expect(chosen == ['by_hosts'] and answer['ranks'] == 4 and answer['link'] == 'network', answer)
stages = answer['candidates'][-1]['stages']
expect([stage['between_hosts'] for stage in stages] == [True, False], stages)
# All candidates are priced for the same link, which the ranks of a host share, so the one that is
# chosen for its time must be the cheapest.
for operation in ('all_gather', 'reduce_scatter', 'all_reduce', 'broadcast'):
    for size in ('64', '1K', '4K', '16K', '64K', '256K', '1M', '16M'):
        answer, chosen = explained(operation, size, '--hosts', '2', '--ranks-per-host', '2')
        times = {one['plan']: one['predicted_us'] for one in answer['candidates']}
        flat = min(time for plan, time in times.items() if plan != 'by_hosts')
        expect(chosen != ['by_hosts'] or times['by_hosts'] <= flat, answer)
        told = float(re.search(r'([0-9.]+) flat', answer['why'])[1])  # for slots of a typical size
        expect(abs(flat - told) < 0.3 * told, answer)
expect(
    'between hosts' in run('all_gather', '4M', '--hosts', '2', '--ranks-per-host', '2'),
    'stages in the table',
)
# Over sockets even a small sum crosses once for each host. A host with one rank has no stages.
small = ('all_reduce', '256', '--hosts', '2')
answer, chosen = explained(*small, '--ranks-per-host', '2', FSCCL_NETWORK='tcp')
expect(answer['transport'] == 'tcp' and chosen == ['by_hosts'], answer)
answer, chosen = explained(*small, '--ranks-per-host', '1', FSCCL_NETWORK='tcp')
expect(chosen and 'by_hosts' not in [one['plan'] for one in answer['candidates']], answer)
answer, chosen = explained(
    'all_reduce',
    '1M',
    '--hosts',
    '16',
    '--ranks-per-host',
    '8',
    '--file',
    samples / 'rails_two_tiers.json',
)
expect(answer['ranks'] == 128 and chosen == ['by_hosts'], answer)

# The topologies place the same ranks farther from each other.
near = explained('barrier', '0', '--ranks', '2', '--file', samples / 'two_packages.json')[0]
far = explained('barrier', '0', '--ranks', '64', '--file', samples / 'two_packages.json')[0]
expect(
    far['measured']['exchange_ns'] > near['measured']['exchange_ns']
    and far['link'] != near['link'],
    (near, far),
)

# A rule of the environment goes before one of the file, and that before the table.
with tempfile.TemporaryDirectory() as folder:
    tuned = pathlib.Path(folder) / 'tuned.json'
    tuned.write_text(
        '{"fsccl_tuning": 1, "costs": ['
        + ', '.join(
            f'{{"machine": "any", "transport": "shm", "link": "{link}", '
            f'"measured": {{{MEASURED % exchange}}}}}'
            for link, exchange in (('cache', 77), ('package', 88))
        )
        + '], "rules": ["gather=slots", "all_gather:1M-=slots/32K"]}',
        encoding='utf-8',
    )
    with_file = (
        'all_gather',
        '4M',
        '--ranks',
        '2',
        '--file',
        samples / 'two_packages.json',
        '--tuning',
        tuned,
    )
    answer, chosen = explained(*with_file)
    expect(
        chosen == ['all_gather_slots'] and answer['why'] == 'rule 1 of FSCCL_TUNING_FILE says so',
        answer,
    )
    expect(
        answer['costs_from'] == 'tuning file' and answer['measured']['exchange_ns'] in (77, 88),
        answer,
    )
    answer, chosen = explained(*with_file, FSCCL_PLAN='all_gather=direct')
    expect('all_gather_direct' in chosen and answer['why'] == 'FSCCL_PLAN says so', answer)
    answer, chosen = explained('all_gather', '4M', FSCCL_TUNING_FILE=str(tuned))
    expect(chosen == ['all_gather_slots'], answer)
    answer, chosen = explained(*with_file, FSCCL_EAGER_BYTES='0')
    expect('all_gather_direct' in chosen and answer['why'] == 'FSCCL_EAGER_BYTES says so', answer)

    # The error names what is wrong.
    tuned.write_text('{"fsccl_tuning": 1, "rules": ["all_gather=ring"]}', encoding='utf-8')
    for arguments, variables, words in (
        (
            ('all_gather', '4M', '--tuning', tuned),
            {},
            ['tuned.json', 'rules[0]', '"ring"', 'slots, direct, read'],
        ),
        (('all_gather', '4M', '--tuning', folder + '/none'), {}, ['none']),
        (('allgather', '4M'), {}, ['"allgather"', 'all_gather, reduce_scatter']),
        (
            ('all_gather', '4M'),
            {'FSCCL_PLAN': 'all_gather=ring'},
            ['FSCCL_PLAN', '"ring"', 'slots, direct, read'],
        ),
        (
            ('all_gather', '4M'),
            {'FSCCL_HIERARCHY': 'maybe'},
            ['FSCCL_HIERARCHY is "maybe"; accepted: one of'],
        ),
        (('all_gather', '4M', '--file', folder + '/none'), {}, ['none']),
    ):
        said = run(*arguments, status=1, **variables)
        expect(all(word in said for word in words), f'{arguments}: {words}: {said}')
    expect('"lots"' in run('all_gather', 'lots', status=2), 'a size')
