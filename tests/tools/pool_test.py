"""Checks what `fsccl-perf pool` measures, prints and refuses, with artificial traces.
usage: pool_test.py PROGRAM CASE

CASE is steady, unseen, peers, rmm or refused.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import fsdp_trace
from program import expect

program, case = sys.argv[1:]
KEYS = {
    'trace',
    'live',
    'clique_bound',
    'reserved',
    'ratio',
    'most_reserved',
    'most_ratio',
    'plan_us',
    'system_calls',
    'added_waits',
    'growths',
    'alloc_free_ns_p50',
    'alloc_free_ns_p99',
}
POOLED = {'ag_out', 'param', 'grad', 'rs_in', 'rs_out'}
PAGE = 4096
MODELS = {
    'equal': [[90 * PAGE]] + [[8 * PAGE, 30 * PAGE, PAGE]] * 12 + [[88 * PAGE]],
    'wide-head': [[490 * PAGE]]
    + [[399 * PAGE]] * 40
    + [[490 * PAGE]],  # the proportions of a model with 70 billion parameters
    'mixed': [[20 * PAGE]] + [[5 * PAGE], [160 * PAGE, PAGE]] * 9 + [[25 * PAGE]],
    'uneven': [[(7 + 13 * i % 29) * PAGE, (3 + 5 * i % 7) * PAGE] for i in range(17)],
}


def run(folder, traces, *arguments, status=0):
    files = []
    for name, text in traces.items():
        files.append(pathlib.Path(folder) / f'{name}.jsonl')
        files[-1].write_text(text, encoding='utf-8')
    done = subprocess.run(
        [program, 'pool', *arguments, *map(str, files)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    if done.returncode != status:
        sys.exit(
            f'{" ".join(arguments)}: status {done.returncode}, not '
            f'{status}\n{done.stdout}{done.stderr}'
        )
    return done.stdout if status == 0 else done.stderr


def rows(folder, traces, *arguments):
    return [
        json.loads(line)
        for line in run(folder, traces, '--json', '--steps', '100', *arguments).splitlines()
    ]


def check_steady(folder):
    traces = {
        f'{name}.{dialect}.{prefetch}': fsdp_trace.make(
            f'{name}.{dialect}.{prefetch}', units, dialect, prefetch
        )
        for name, units in MODELS.items()
        for dialect in ('flat', 'copies')
        for prefetch in (1, 2)
    }
    found = [row for row in rows(folder, traces, '--no-peers') if row['allocator'] == 'fsccl']
    expect([row['trace'] for row in found] == list(traces), 'a row for each trace')
    for row in found:
        expect(KEYS <= set(row), f'the keys of {row}')
        expect(row['clique_bound'] >= row['live'] > 0, f'the bounds of {row}')
        limit = 1.05 if row['trace'].startswith('uneven') else 1.01
        expect(1 <= row['ratio'] <= limit, f'a ratio of at most {limit}: {row}')
        expect(
            row['added_waits'] == row['growths'] == row['peak_variance'] == 0,
            f'a steady state: {row}',
        )
        expect(
            row['system_calls'] in (0, None), f'no calls of the system: {row}'
        )  # null if the system does not allow tracing
        expect(0 < row['alloc_free_ns_p50'] <= row['alloc_free_ns_p99'], f'times: {row}')
    found = [
        row
        for row in rows(folder, traces, '--no-peers', '--schedule', 'recorded')
        if row['allocator'] == 'fsccl'
    ]
    for row in found:
        limit = 1.05 if row['trace'].startswith('uneven') else 1.01
        expect(
            row['how'] == 'recorded' and row['growths'] == row['added_waits'] == 0,
            f'recorded: {row}',
        )
        expect(
            row['ratio'] <= limit,
            f'what the recorded step took beyond its plan is given back: {row}',
        )
    expect(any(row['most_ratio'] > row['ratio'] for row in found), f'it took more: {found}')
    table = run(folder, {'equal': traces['equal.flat.1']}, '--no-peers')
    expect(
        'equal.flat.1' in table and 'declared' in table and 'ratio' in table.splitlines()[0], table
    )
    # A trace without a name is called as its file, whose name need not be UTF-8.
    _, unnamed = traces['equal.flat.1'].split('\n', 1)
    for row in rows(folder, {'name\udcff': unnamed}, '--no-peers'):
        expect(row['trace'].endswith('name\ufffd.jsonl'), row)


def check_unseen(folder):
    units = MODELS['mixed']
    skipped = [[u for u in range(len(units)) if u % 5 != phase] for phase in range(1, 4)]
    trace = fsdp_trace.make(
        'irregular', units, orders=[None, *skipped, None], evaluate_after=(1, 4)
    )
    known, unseen = (
        row
        for row in rows(folder, {'irregular': trace}, '--no-peers')
        if row['allocator'] == 'fsccl'
    )
    expect(
        unseen['ratio'] <= 1.03 and unseen['peak_variance'] == 0,
        f'each kind of step is known once it came: {unseen}',
    )
    expect(known['how'] == 'declared' and known['ratio'] <= 1.03, f'all steps known: {known}')
    expect(
        unseen['how'] == 'unseen' and unseen['growths'] == unseen['added_waits'] == 0,
        f'no growth once all was seen: {unseen}',
    )


def check_peers(folder):
    found = {
        row['allocator']: row
        for row in rows(folder, {'equal': fsdp_trace.make('equal', MODELS['equal'])})
    }
    expect(
        {'fsccl', 'array', 'glibc', 'jemalloc', 'mimalloc', 'torch-caching', 'torch-expand'}
        == set(found),
        f'peers: {list(found)}',
    )
    expect(found['glibc']['alloc_free_ns_p50'] > 0, f'glibc: {found["glibc"]}')
    for name in ('jemalloc', 'mimalloc'):
        row = found[name]
        expect('not installed' in row['note'] or row['alloc_free_ns_p50'] > 0, f'{name}: {row}')
    for name in ('torch-caching', 'torch-expand'):
        expect(
            found[name]['how'] == 'simulated' and found[name]['ratio'] >= 1,
            f'{name}: {found[name]}',
        )


# A stand-in for the library that perf/pool/rmm/build.sh makes. It never uses memory again.
STACK = """
#include "perf/pool/rmm/peer.h"
static char memory[1];
static uint64_t bytes, calls;
static void make(void) { bytes = calls = 0; }
static void* take(uint64_t more, uint32_t stream) { (void)stream; bytes += more; ++calls; return memory; }
static void give_back(void* block, uint64_t size, uint32_t stream) { (void)block; (void)size; (void)stream; }
static uint64_t reserved(void) { return bytes; }
static uint64_t growths(void) { return calls; }
static uint64_t waits(void) { return 2 * calls; }
static const struct rmm_peer peer = {make, take, give_back, reserved, growths, waits};
const struct rmm_peer* fsccl_perf_rmm_peer(void) { return &peer; }
"""


def check_rmm(folder):
    source, library = pathlib.Path(folder) / 'stack.c', pathlib.Path(folder) / 'stack.so'
    source.write_text(STACK, encoding='utf-8')
    root = pathlib.Path(__file__).resolve().parents[2]
    subprocess.run(
        ['cc', '-shared', '-fPIC', f'-I{root}', str(source), '-o', str(library)], check=True
    )
    text = fsdp_trace.make('equal', MODELS['equal'])
    records = [json.loads(line) for line in text.splitlines()]
    taken = [record for record in records if record['op'] == 'alloc' and record['kind'] in POOLED]
    steps = sum(record['op'] == 'mark' for record in records)
    found = [
        row
        for row in rows(folder, {'equal': text}, '--no-peers', '--rmm', str(library))
        if row['allocator'] == 'rmm'
    ]
    expect(len(found) == 1, found)
    row = found[0]
    in_step = sum(block['bytes'] for block in taken) // steps
    warm_up = -(-4 // steps) * steps
    expect(
        row['reserved'] == (warm_up + 100) * in_step and row['growths'] * steps == 100 * len(taken),
        row,
    )
    expect(row['added_waits'] == 2 * row['growths'] and row['system_calls'] in (0, None), row)
    expect(0 < row['alloc_free_ns_p50'] <= row['alloc_free_ns_p99'], row)


def check_refused(folder):
    good = fsdp_trace.make('good', MODELS['equal'])
    lines = good.splitlines()
    take = next(i for i, line in enumerate(lines) if '"alloc"' in line)
    block = json.loads(lines[take])

    def refused(line, text, *words):
        changed = [*lines[:line], text, *lines[line + 1 :]]
        error = run(folder, {'bad': '\n'.join(changed)}, status=2)
        for word in (f'bad.jsonl:{line + 1}:', *words):
            expect(word in error, f'"{word}" in: {error}')

    refused(take, '{"op":', 'not a JSON object')
    refused(take, '[1, 2]', 'not a JSON object')
    refused(take, '{"op":"grab"}', '"grab"', 'known are')
    for name, value in (
        ('bytes', -1),
        ('bytes', 2**60),
        ('bytes', 0),
        ('bytes', 1.5),
        ('id', 'seven'),
        ('stream', 3),
        ('kind', None),
    ):
        refused(take, json.dumps({**block, name: value}), name)
    refused(
        take, json.dumps({'op': 'free', 'id': 12345, 'stream': 'ag'}), '12345', 'no alloc record'
    )
    refused(take, json.dumps({'op': 'wait', 'event': 999, 'stream': 'ag'}), '999')
    refused(take + 1, lines[take], 'there already')
    refused(take, json.dumps({'op': 'mark', 'what': 'lunch'}), 'lunch')
    freed = [
        line
        for line in lines
        if json.loads(line).get('op') != 'free' or json.loads(line)['id'] != block['id']
    ]
    error = run(folder, {'held': '\n'.join(freed)}, status=2)
    expect(
        f'held.jsonl:{take + 1}:' in error
        and 'not freed' in error
        and f'block {block["id"]}' in error,
        error,
    )
    expect(
        'without a step' in run(folder, {'empty': '{"op":"meta","name":"x"}\n'}, status=2),
        'an empty trace',
    )
    missing = subprocess.run(
        [program, 'pool', str(pathlib.Path(folder) / 'none')],
        capture_output=True,
        text=True,
        check=False,
    )
    expect(missing.returncode == 2 and 'No such file' in missing.stderr, missing.stderr)
    error = run(folder, {'good': good}, '--rmm', f'{folder}/none.so', status=2)
    expect('none.so' in error and 'perf/pool/rmm/build.sh' in error, error)


with tempfile.TemporaryDirectory() as place:
    {
        'steady': check_steady,
        'unseen': check_unseen,
        'peers': check_peers,
        'rmm': check_rmm,
        'refused': check_refused,
    }[case](place)
