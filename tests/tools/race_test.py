"""Tests `fsccl-perf race`, its table and file, and their effect on `fsccl-info explain` and on the
choice of a job. usage: race_test.py FSCCL-PERF FSCCL-INFO [SANITIZER ...]"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

from program import expect
from program import run as run_program

perf, info, *sanitizers = sys.argv[1:]
sanitized = bool(set(sanitizers) - {'none'})
PASSES = {
    'copy',
    'copy_past',
    'cast',
    'cast_past',
    'reduce',
    'reduce_past',
    'reduce_norm',
    'reduce_norm_past',
}
QUICK = ('race', '-n', '3', '--seconds', '600')


def run(program, *arguments, status=0, **variables):
    return run_program(
        program,
        *arguments,
        status=status,
        env={**os.environ, 'FSCCL_TIMEOUT_MS': '60000', **variables},
    )


def kernels(**variables):
    text = run(info, 'explain', 'all_gather', '4M', '--json', **variables)
    return json.loads(text)['kernels']


def chosen_by_job(**variables):
    """Returns the variants that a job of two ranks has chosen. Both ranks report them at the log
    level debug."""
    log = pathlib.Path(variables['XDG_CACHE_HOME']) / 'log'
    log.unlink(missing_ok=True)
    variables = {**variables, 'FSCCL_LOG_LEVEL': 'debug', 'FSCCL_LOG_FILE': str(log)}
    run(
        perf, 'collectives', '--ranks', '2', '-b', '8', '-e', '8', '-n', '1', '-w', '1', **variables
    )
    lines = [
        line.split('kernels from the ')[1]
        for line in log.read_text(encoding='utf-8').splitlines()
        if 'kernels from the ' in line
    ]
    expect(len(lines) == 2, lines)
    said = [(line.split(': ')[0], json.loads(line[line.index('{') :])) for line in lines]
    expect(said[0][1]['passes'] == said[1][1]['passes'], said)
    origins = [origin for origin, _ in said]
    expect(origins.count('rank 0') == 1, origins)
    origins.remove('rank 0')
    return origins[0], said[0][1]['passes']


with tempfile.TemporaryDirectory() as folder:
    expect(kernels(XDG_CACHE_HOME=folder)['from'] == 'default', 'nothing is known')

    # The JSON has a line for the machine, and one for each variant of each pass. With --no-keep no
    # file is written.
    lines = [
        json.loads(line)
        for line in run(
            perf, *QUICK, '--json', '--no-keep', '--threads', '2', XDG_CACHE_HOME=folder
        ).splitlines()
    ]
    expect({'machine', 'microcode', 'library', 'threads', 'bytes'} <= set(lines[0]), lines[0])
    rows = lines[1:]
    expect({row['pass'] for row in rows} == PASSES, rows)
    for name in PASSES:
        of_pass = [row for row in rows if row['pass'] == name]
        expect(sum(row['chosen'] for row in of_pass) == 1, of_pass)
        expect(of_pass[0]['ratio_to_default'] == 1, of_pass[0])
        expect(all(len(row['ns_per_kib']) == 3 and row['gb_per_s'] > 0 for row in of_pass), of_pass)
    expect(not list(pathlib.Path(folder).iterdir()), 'something was kept')

    # A race that does not complete is not kept.
    run(perf, 'race', '--seconds', '0.1', '-n', '10000', status=1, XDG_CACHE_HOME=folder)
    expect(not list(pathlib.Path(folder).iterdir()), 'half a race was kept')

    # Threads that cannot be made, or have no memory, are an error that says so. Sanitizers reserve
    # more addresses than this limit has.
    def without_threads():
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 36, hard))
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    for limit, words, said in (
        (without_threads, ('--threads', '2'), 'thread'),
        (None, ('--threads', '1024'), 'are available: give fewer --threads'),
    ):
        memory = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
        if limit is None and memory > 1024 << 27:
            continue  # there may be memory for so many
        most_stack = resource.getrlimit(resource.RLIMIT_STACK)[1]
        if limit and (sanitized or most_stack not in (resource.RLIM_INFINITY, -1)):
            continue
        done = subprocess.run(
            [perf, 'race', '--seconds', '0.1', '--no-keep', *words],
            preexec_fn=limit,
            capture_output=True,
            text=True,
            check=False,
        )
        expect(done.returncode == 1 and said in done.stderr, done)
        expect('fewer --threads' in done.stderr and 'written' not in done.stderr, done)

    # Without options the program prints a table and keeps a file. `fsccl-info explain` and jobs use
    # the winners.
    table = run(perf, *QUICK, XDG_CACHE_HOME=folder)
    expect(table.count('\n* ') == len(PASSES), table)
    (kept,) = pathlib.Path(folder, 'fsccl').iterdir()
    record = json.loads(kept.read_text(encoding='utf-8'))
    expect(set(record['races']) == PASSES and record['by'] == 'race', record)
    known = kernels(XDG_CACHE_HOME=folder)
    expect(known['from'] == 'file' and set(known['passes']) == PASSES, known)
    for name, variant in known['passes'].items():
        expect(f'* {variant} ' in table and variant in known['races'][name], (name, variant))
    expect(chosen_by_job(XDG_CACHE_HOME=folder) == ('file', known['passes']), known)
    text = run(info, 'explain', 'all_gather', '4M', XDG_CACHE_HOME=folder)
    expect('as measured on this kind of processor' in text and 'times as long' in text, text)

    # A file with another choice is followed. A file with nonsense is not followed, and is replaced.
    slow = next(name for name in record['races']['reduce_past'] if name.startswith('plain'))
    record['races']['reduce_past'][slow] = [0.1, 0.1, 0.1]
    kept.write_text(json.dumps(record), encoding='utf-8')
    expect(kernels(XDG_CACHE_HOME=folder)['passes']['reduce_past'] == slow, slow)
    expect(chosen_by_job(XDG_CACHE_HOME=folder)[1]['reduce_past'] == slow, slow)
    for nonsense in ('', '{', '[' * 100_000, json.dumps({**record, 'processor': 'another'})):
        kept.write_text(nonsense, encoding='utf-8')
        expect(kernels(XDG_CACHE_HOME=folder)['from'] == 'default', nonsense[:80])
    chosen_by_job(XDG_CACHE_HOME=folder)

    # The setting can choose the variants, or switch the choice off. A wrong value is an error of
    # the job.
    pinned = f'reduce_past={slow},copy=memcpy'
    expect(
        chosen_by_job(XDG_CACHE_HOME=folder, FSCCL_KERNELS=pinned)[1]['reduce_past'] == slow, slow
    )
    expect(chosen_by_job(XDG_CACHE_HOME=folder, FSCCL_KERNELS='default')[0] == 'default', 'default')
    run(
        perf, 'collectives', '--ranks', '2', '-b', '8', '-e', '8', status=1, FSCCL_KERNELS='fastest'
    )

    # Winners that cannot be kept are an error only if --keep asks for it.
    for place in ('/dev/null', 'relative'):
        for words, status in (((), 0), (('--keep',), 1)):
            done = subprocess.run(
                [perf, *QUICK, *words],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, 'XDG_CACHE_HOME': place, 'HOME': place},
            )
            expect(done.returncode == status and 'not kept' in done.stderr, (place, words, done))

    # Jobs run also if no folder can be written.
    for place in ('/proc/nowhere', '/dev/null', 'relative'):
        run(
            perf,
            *('collectives', '--ranks', '2', '-b', '8', '-e', '8', '-n', '1', '-w', '1'),
            XDG_CACHE_HOME=place,
            HOME=place,
        )
