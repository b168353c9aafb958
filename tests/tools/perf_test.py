"""Checks what `fsccl-perf` measures, prints and refuses. usage: perf_test.py PROGRAM CASE

CASE is collectives, shared, options, report, step, codec, dry-run or models.
"""

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile

from page import page_of
from program import expect
from program import run as run_program

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'perf'))
from free_port import free_port

program, case = sys.argv[1:]
COLLECTIVE_KEYS = {
    'coll',
    'dtype',
    'bytes',
    'ranks',
    'in_place',
    'memory',
    'p10_us',
    'p50_us',
    'p99_us',
    'algbw',
    'busbw',
    'wrong',
}
STEP_KEYS = {
    'total_us',
    'phases_us',
    'bytes_moved',
    'bytes_minimum',
    'peak_bytes',
    'live_bound_bytes',
    'wrong',
}
QUICK = ('-n', '3', '-w', '1')
TINY = {
    'name': 'tiny',
    'units': [{'name': 'root', 'params': [['embedding', [1001, 64]], ['norm', [64]]]}]
    + [{'name': f'layers.{i}', 'params': [['w', [257, 96]], ['b', [96]]]} for i in range(4)],
}

OVER_TCP = {'FSCCL_TRANSPORT': 'tcp'}


def run(*arguments, status=0, settings=()):
    env = {**os.environ, 'FSCCL_TIMEOUT_MS': '60000', **dict(settings)}
    return run_program(program, *arguments, status=status, env=env)


def rows(*arguments, settings=()):
    return [json.loads(line) for line in run(*arguments, '--json', settings=settings).splitlines()]


def near(a, b):
    return abs(a - b) <= 1e-2 * max(abs(a), abs(b)) + 1e-3  # because the figures are rounded


def check_row(row):
    expect(COLLECTIVE_KEYS <= set(row), f'the keys of {row}')
    expect(
        row['wrong'] == 0 and 0 < row['p10_us'] <= row['p50_us'] <= row['p99_us'],
        f'the figures of {row}',
    )
    ranks = row['ranks']
    factor = {
        'all_reduce': 2 * (ranks - 1) / ranks,
        'broadcast': 1,
        'reduce': 1,
        'send_recv': 1,
        'barrier': 0,
    }.get(row['coll'], (ranks - 1) / ranks)
    expect(near(row['algbw'], row['bytes'] / row['p50_us'] * 1e-3), f'algbw = size / time in {row}')
    expect(near(row['busbw'], row['algbw'] * factor), f'busbw = algbw x {factor} in {row}')


def check_collectives():
    found = rows(
        'collectives',
        '--coll',
        'all',
        '--ranks',
        '3',
        '-b',
        '96',
        '-e',
        '9600',
        '-f',
        '10',
        '--memory',
        'caller,pool',
        *QUICK,
    )
    for row in found:
        check_row(row)
    names = {row['coll'] for row in found}
    expect(
        {'all_gather', 'reduce_scatter', 'all_reduce', 'broadcast', 'barrier'} <= names,
        f'the collectives: {names}',
    )
    for name in ('all_gather', 'reduce_scatter', 'all_reduce'):
        forms = sorted(
            (row['bytes'], row['memory'], row['in_place']) for row in found if row['coll'] == name
        )
        expect(
            forms
            == sorted(
                (size, memory, place)
                for size in (96, 960, 9600)
                for memory in ('caller', 'pool')
                for place in (False, True)
            ),
            f'the forms of {name}: {forms}',
        )
    # With these plans the system reads the caller's memory for receivers, if it allows that.
    moved = 'broadcast,send_recv,all_gather'
    settings = {'FSCCL_PLAN': 'broadcast=read,send=read,all_gather=read'}
    for row in rows(
        'collectives',
        '--coll',
        moved,
        '--ranks',
        '3',
        '-b',
        '1K',
        '-e',
        '1M',
        '-f',
        '30',
        '--memory',
        'caller,pool',
        *QUICK,
        settings=settings,
    ):
        check_row(row)
    # A barrier has no buffers, so it is the same with every kind of memory.
    with tempfile.TemporaryDirectory() as folder:
        barrier = ('collectives', '--coll', 'barrier', '--memory', 'shared', '--ranks', '2')
        run(*barrier, *QUICK, settings={'FSCCL_METRICS_FILE': f'{folder}/%r'})
        told = pathlib.Path(folder, '0').read_text(encoding='utf-8')
        expect('"barrier"' in told and 'unshard' not in told, told)
    # Every operator and type, with a root that is not 0.
    for row in rows(
        'collectives',
        '--coll',
        'reduce_scatter,all_reduce,broadcast',
        '--ranks',
        '2',
        '-b',
        '1K',
        '-e',
        '1K',
        '-d',
        'all',
        '-o',
        'all',
        '-r',
        '1',
        '--in-place',
        'no',
        *QUICK,
    ):
        check_row(row)
        expect(row['root'] == (1 if row['coll'] == 'broadcast' else -1), f'the root of {row}')
    # Most machines that run the tests have fewer cores than there are ranks here.
    for row in rows('collectives', '--ranks', '5', '-b', '4K', '-e', '4K', *QUICK):
        check_row(row)
    table = run('collectives', '--coll', 'all_gather', '--ranks', '2', '-b', '8', '-e', '8', *QUICK)
    for word in (
        'size(B)',
        'redop',
        'out-of-place',
        'in-place',
        'algbw',
        'busbw',
        '#wrong',
        'caller',
    ):
        expect(word in table, f'{word} in the table:\n{table}')


def check_shared():
    found = rows(
        'collectives',
        '--coll',
        'all_gather,broadcast,all_reduce',
        '--ranks',
        '2',
        '-b',
        '4K',
        '-e',
        '1M',
        '-f',
        '16',
        '--memory',
        'all',
        '-d',
        'bfloat16,int32',
        *QUICK,
    )
    for row in found:
        check_row(row)
    shared = {
        (row['coll'], row['dtype'], row['bytes']) for row in found if row['memory'] == 'shared'
    }
    expect(
        shared
        == {
            (name, dtype, size)
            for name in ('all_gather', 'broadcast')
            for dtype in ('bf16', 'int32')
            for size in (4096, 65536, 1048576)
        },
        f'what a shared slot is measured for: {shared}',
    )


def check_options():
    found = rows(
        'collectives',
        '--coll',
        'broadcast',
        '-b',
        '1K',
        '-e',
        '3K',
        '-i',
        '1K',
        '--ranks',
        '2',
        *QUICK,
    )
    sizes = [row['bytes'] for row in found]
    expect(sizes == [1024, 2048, 3072], f'-i steps: {sizes}')
    for row in rows(
        'collectives',
        '--coll',
        'broadcast',
        '-b',
        '64',
        '-e',
        '64',
        '-c',
        '0',
        '--ranks',
        '2',
        *QUICK,
    ):
        expect(row['wrong'] is None, f'nothing is checked with -c 0: {row}')
    for arguments, word in (
        (('-b', '12Q'), '12Q'),
        (('-b', '2M', '-e', '1M'), '2M'),
        (('-d', 'quad'), 'quad'),
        (('-o', 'median'), 'median'),
        (('--coll', 'shuffle'), 'shuffle'),
        (('-c', '2'), '2'),
        (('-f', '0.5'), '0.5'),
        (('-f', '1'), 'stepfactor'),
        (('-f', '1.0000000001'), 'stepfactor'),
        (('-i', '0'), 'stepbytes'),
        (('-b', '0'), 'minbytes'),
        (('--coll', 'all_reduce', '--memory', 'shared', '--ranks', '2'), 'nothing can be measured'),
        (('-i', '1K', '-f', '2'), 'step'),
        (('-i', '1', '-b', '1', '-e', '1G'), 'stepbytes'),
        (('-r', '2', '--ranks', '2'), 'root'),
        (('--ranks', '0'), 'ranks'),
        (('--memory', 'gpu'), 'gpu'),
        (('-o', 'mulsum', '-d', 'int8'), 'floating'),
        (('-n', '0'), 'iters'),
        (('--report', '/nonexistent/page.html', '--ranks', '1'), '/nonexistent/page.html'),
    ):
        expect(
            word in run('collectives', *arguments, status=2),
            f'the error of {arguments} names {word}',
        )
    for arguments, word in (
        (('--model', 'none-such'), 'llama-3.2-1b'),
        (('--keep', 'some'), 'some'),
        (('--wire', 'fp8'), 'fp8'),
        (('--keep', 'budget', '3X'), '3X'),
        (('--block', '8'), '32x32'),
        (('--block', '8x8'), '--layout ragged'),
        (('--steps', '0'), 'steps'),
        (('--layers', '99'), '99'),
        (('--codec-always',), 'only the delta codec declines'),
        (('--codec', 'int8', '--codec-always'), 'only the delta codec declines'),
    ):
        expect(word in run('step', *arguments, status=2), f'the error of {arguments} names {word}')
    # If one rank ends, the others end, too, without messages of their own.
    for arguments, word in (
        (
            ('collectives', '--report', '/nonexistent/page.html', '-b', '8', '-e', '8'),
            'permissions',
        ),
        (('tune', '-o', '/nonexistent/tuned.json', '-b', '8', '-e', '8'), 'permissions'),
    ):
        said = run(*arguments, '--ranks', '2', status=2)
        expect(word in said and 'died' not in said, f'{arguments}: {said}')
    # No rank ends while another one still learns of the failure by messages over sockets.
    for _ in range(4):
        said = run('collectives', '--ranks', '4', '--root', '7', status=2, settings=OVER_TCP)
        expect('--root 7' in said and 'died' not in said, said)
    # Buffers, and the shards of the three ways of --codec, are counted before they are taken.
    for arguments in (
        ('collectives', '--coll', 'all_reduce', '-b', '1T', '-e', '1T'),
        ('tune', '-b', '1T', '-e', '1T'),
        ('step', '--model', 'llama-3.1-405b', '--codec', 'int8'),
    ):
        said = run(*arguments, '--ranks', '2', status=1)
        expect('than a host has available' in said, f'{arguments}: {said}')
    # Lists may be nested deeper than the stack is.
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / 'deep.json'
        deep = '[' * 300_000 + ']' * 300_000
        unit = f'{{"name": "u", "params": [["w", [{deep}]]]}}'
        model.write_text(f'{{"name": "m", "units": [{unit}]}}', encoding='utf-8')
        said = run('step', '--model', str(model), status=2)
        expect('not array' in said, said)
    # The ends of the ranks are noticed even if whoever starts the program ignores such signals.
    subprocess.run(
        [program, 'collectives', '--coll', 'barrier', '--ranks', '2', *QUICK],
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        stdout=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    said = run('step', '--model', 'llama-3.1-405b', '--ranks', '2', status=1)
    expect(
        '--dry-run' in said and '--layers' in said and 'died' not in said,
        f'what does not fit: {said}',
    )
    said = run('collectives', '-b', '512G', '-e', '512G', '--ranks', '2', status=1)
    expect('--maxbytes' in said and 'died' not in said, f'what does not fit: {said}')
    for arguments in (
        ('collectives', '-b', '8', '-e', '8'),
        ('collectives', '-b', '8', '-e', '8', '--json'),
        ('step', '--model', 'llama-3-8b', '--dry-run', '--steps', '1'),
    ):
        with open('/dev/full', 'w', encoding='utf-8') as full:
            done = subprocess.run(
                [program, *arguments, '--ranks', '1'],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
            )
        expect(
            done.returncode == 1 and 'cannot be written' in done.stderr,
            f'{arguments} on a full disk: {done}',
        )


def read_page(path):
    text = path.read_text(encoding='utf-8')
    body = text.split('</style>')[1]
    expect(
        'http' not in text and 'nan' not in body.replace('name', ''),
        'a page loads nothing and has numbers',
    )
    return text, page_of(text)


def check_report():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'page.html'
        run(
            'collectives',
            '--coll',
            'all_gather,barrier',
            '--ranks',
            '2',
            '-b',
            '4K',
            '-e',
            '64K',
            '--report',
            str(path),
            '--memory',
            'all',
            *QUICK,
        )
        text, page = read_page(path)
        expect(
            page.count['figure'] == 2
            and 'limit of this machine' in text
            and 'prefers-color-scheme:dark' in text,
            'the charts',
        )
        expect(page.count['tr'] == 1 + 3 * 5 + 1, f'{page.count["tr"]} lines of the table')
        # The machine's limit needs buffers of its own. Without room for them the page has no limit.
        path.unlink()
        sizes = ('-b', '1T', '-e', '1T')
        run('collectives', '--coll', 'barrier', '--ranks', '2', *sizes, '--report', path, *QUICK)
        expect('barrier' in path.read_text(encoding='utf-8'), 'a page without the limit')
        model = pathlib.Path(folder) / 'model.json'
        model.write_text(
            json.dumps({**TINY, 'name': '<script>alert("&")</script>'}), encoding='utf-8'
        )
        run('step', '--model', str(model), '--ranks', '3', '--report', str(path))
        text, page = read_page(path)
        expect(
            'script' not in page.count and '&lt;script&gt;alert(&quot;&amp;&quot;)' in text,
            'the name of the model is text',
        )
        expect(
            page.count['figure'] == 3 and text.count('rank 2</text>') == 1 and 'live bound' in text,
            'phases and memory',
        )


def check_step():
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / 'model.json'
        model.write_text(json.dumps(TINY), encoding='utf-8')
        for options in (
            (),
            ('--keep', 'always'),
            ('--layout', 'flat', '--sharing', 'private'),
            ('--gradients', 'private'),
            ('--layout', 'ragged'),
            ('--layout', 'ragged', '--block', '3x2', '--gradients', 'private'),
            ('--by-parameter',),
            ('--root', 'split', '--keep', 'always'),
            ('--root', 'split', '--by-parameter'),
            (
                '--by-parameter',
                '--schedule',
                'declared',
                '--sharing',
                'private',
                '--layout',
                'flat',
            ),
            ('--by-parameter', '--prefetch', '0', '--gradients', 'private'),
            ('--schedule', 'declared', '--prefetch', '0', '--wire', 'fp32'),
        ):
            (step,) = rows('step', '--model', str(model), '--ranks', '3', '--steps', '3', *options)
            expect(STEP_KEYS <= set(step), f'the keys of {step}')
            expect(
                step['wrong'] == 0 and step['total_us'] > 0 and not step['dry_run'],
                f'{options}: {step}',
            )
            expect(
                isinstance(step['phases_us'], dict)
                and all(time >= 0 for time in step['phases_us'].values()),
                'phases',
            )
            expect(
                step['bytes_minimum'] <= step['bytes_moved'] <= 1.5 * step['bytes_minimum'],
                f'{options}: bytes {step}',
            )
            expect(step['live_bound_bytes'] <= step['peak_bytes'], f'{options}: memory {step}')
            names = [unit['name'] for unit in TINY['units']]
            if 'split' in options:
                names = ['root.first', *names[1:], 'root.last']
            expect([unit['name'] for unit in step['unit_list']] == names, 'units')


def check_codec():
    """The codec runs between two processes that seem to be on different hosts."""
    (plain, keep, delta), said = codec_rows('delta')
    expect(
        [row['gathers'] for row in (plain, keep, delta)] == ['plain', 'keep plain', 'delta'], said
    )
    expect(all(0 < row['median_us'] <= row['step_us'] for row in (plain, keep, delta)), said)
    expect(delta['fewer_bytes'] > 3 and keep['fewer_bytes'] == 2 and 2 <= delta['state'] < 6, said)
    (_, _, int8), said = codec_rows('int8')
    expect(int8['gathers'] == 'int8' and 1.8 < int8['fewer_bytes'] < 2, said)
    expect(
        '--wire fp32' in run('step', '--codec', 'delta', '--wire', 'fp32', status=2),
        'fp32 is refused',
    )
    for option in (
        ['--keep', 'always'],
        ['--prefetch', '0'],
        ['--by-parameter'],
        ['--report', 'x'],
    ):
        said = run('step', '--codec', 'delta', *option, status=2)
        expect(f'leave out {option[0]}' in said, f'{option}: {said}')


def codec_rows(codec):
    with tempfile.TemporaryDirectory() as folder:
        model, secret = pathlib.Path(folder) / 'model.json', pathlib.Path(folder) / 'secret'
        model.write_text(json.dumps(TINY), encoding='utf-8')
        secret.write_text('0123456789abcdef' * 2, encoding='utf-8')
        secret.chmod(0o600)
        options = (
            '--model',
            str(model),
            '--codec',
            codec,
            *(('--codec-always',) if codec == 'delta' else ()),
            '--steps',
            '4',
            '--warmup',
            '2',
            '--json',
        )
        port = free_port()
        ranks = []
        for rank in range(2):
            place = {
                'RANK': rank,
                'WORLD_SIZE': 2,
                'LOCAL_RANK': 0,
                'LOCAL_WORLD_SIZE': 1,
                'MASTER_ADDR': '127.0.0.1',
                'MASTER_PORT': port,
                'FSCCL_HOST_ID': f'codec host {rank}',
                'FSCCL_JOB_SECRET_FILE': secret,
            }
            environment = {
                **os.environ,
                **{name: str(value) for name, value in place.items()},
                'FSCCL_TIMEOUT_MS': '60000',
            }
            ranks.append(
                subprocess.Popen(
                    [program, 'step', *options], env=environment, stdout=subprocess.PIPE, text=True
                )
            )
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
        expect([rank.returncode for rank in ranks] == [0, 0], f'the status of the ranks: {said}')
    return [json.loads(line) for line in said[0].splitlines()], said


def check_dry_run():
    # A model of 800 GB runs on ranks that may hold almost nothing, and a small model must report
    # the same as a real run.
    most_kib = 300 * 1024  # includes the memory of a sanitizer
    for options in (
        (),
        ('--keep', 'always'),
        ('--gradients', 'private', '--sharing', 'private'),
        ('--schedule', 'declared'),
    ):
        (step,) = rows('step', '--model', 'llama-3.1-405b', '--ranks', '2', '--dry-run', *options)
        expect(
            STEP_KEYS <= set(step) and step['dry_run'] and len(step['unit_list']) == 127,
            f'the keys of {options}',
        )
        expect(
            step['parameters'] > 4e11 and step['live_bound_bytes'] > 2.5e10,
            f'a large model: {options}',
        )
        expect(
            step['live_bound_bytes'] <= step['peak_bytes'] <= 2 * step['live_bound_bytes'],
            f'{options}: memory',
        )
        expect(step['bytes_moved'] >= step['bytes_minimum'] > 1e12, f'{options}: bytes')
    (step,) = rows(
        'step',
        '--model',
        'llama-3.1-405b',
        '--ranks',
        '2',
        '--dry-run',
        '--schedule',
        'declared',
        '--by-parameter',
    )
    expect(
        step['plan_bound_bytes'] <= step['planned_bytes'] <= 0.65 * step['classic_bytes'],
        f'slots by parameter: {step}',
    )
    expect(
        step['plan_misses'] == 0 and step['bytes_moved'] >= step['bytes_minimum'] > 1e12,
        f'slots by parameter: {step}',
    )
    # The program compares the memory of a unit's slots with that of FSDP2's buffers, which it
    # simulates.
    (step,) = rows(
        'step',
        '--model',
        'llama-3-8b',
        '--ranks',
        '2',
        '--dry-run',
        '--schedule',
        'declared',
        '--root',
        'split',
        '--layout',
        'flat',
        '--sharing',
        'private',
    )
    ratios = [
        step['planned_bytes'] / step[key]
        for key in ('fsdp2_caching_bytes', 'fsdp2_expandable_bytes')
    ]
    expect(ratios[0] <= 0.30 and ratios[1] <= 0.47, f'memory against FSDP2: {ratios}')
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    expect(used < most_kib, f'a dry run of 800 GB touched {used} KiB')
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / 'model.json'
        model.write_text(json.dumps(TINY), encoding='utf-8')
        (real,) = rows('step', '--model', str(model), '--ranks', '2')
        (dry,) = rows('step', '--model', str(model), '--ranks', '2', '--dry-run')
        for key in (
            'bytes_moved',
            'bytes_minimum',
            'peak_bytes',
            'live_bound_bytes',
            'planned_bytes',
            'plan_hits',
            'plan_misses',
        ):
            expect(
                real[key] == dry[key], f'{key}: {real[key]} in a real run, {dry[key]} in a dry one'
            )


def check_models():
    known = (
        run('step', '--model', 'none-such', status=2)
        .split('known are: ')[1]
        .split('. A model')[0]
        .split(', ')
    )
    expect(len(known) >= 6, f'known models: {known}')
    for name in known:
        (step,) = rows(
            'step',
            '--model',
            name,
            '--ranks',
            '2',
            '--dry-run',
            '--steps',
            '2',
            '--schedule',
            'declared',
        )
        expect(
            step['peak_bytes'] >= step['live_bound_bytes'] > 0,
            f'{name}: {step["peak_bytes"]} of {step["live_bound_bytes"]}',
        )


{
    'collectives': check_collectives,
    'shared': check_shared,
    'options': check_options,
    'report': check_report,
    'step': check_step,
    'codec': check_codec,
    'dry-run': check_dry_run,
    'models': check_models,
}[case]()
