"""Tests `fsccl-perf tune --memory gpu`, which measures the algorithms of collectives on memory of
GPUs, and writes their times, which decide the next choice. The test runs over the stand-ins for
CUDA's driver and NCCL.

usage: tune_gpu_test.py FSCCL-PERF
"""

import json
import os
import pathlib
import sys
import tempfile

from program import expect
from program import run as run_program

(perf,) = sys.argv[1:]
QUICK = ('tune', '--ranks', '2', '--memory', 'gpu', '-b', '4K', '-e', '16K', '-f', '4', '-n', '3')


def run(*arguments, **variables):
    return run_program(
        perf,
        *QUICK,
        *arguments,
        status=0,
        env={**os.environ, 'FSCCL_TIMEOUT_MS': '60000', **variables},
    )


def rows(*arguments, **variables):
    return [json.loads(line) for line in run(*arguments, '--json', **variables).splitlines()]


with tempfile.TemporaryDirectory() as folder:
    made = pathlib.Path(folder) / 'made.json'
    found = rows('--coll', 'all_gather,all_reduce', '-o', made)
    expect(len(found) == 2 * 2, found)
    for row in found:
        expect(row['memory'] == 'gpu' and row['chosen'] == 'nccl', row)
        expect({'nccl', 'staged'} <= set(row['forced_us']), row)
        expect(row['best_us'] == min(row['forced_us'].values()), row)

    # The file has the time of each algorithm at each size, on ranks like these.
    text = json.loads(made.read_text(encoding='utf-8'))
    prices = {(one['operation'], one['algorithm']): one for one in text['native']}
    expect({('all_gather', 'nccl'), ('all_reduce', 'staged')} <= set(prices), prices)
    for one in text['native']:
        expect(one['sizes'] == [4096, 16384] and min(one['ns']) > 0, one)
        expect((one['hosts'], one['ranks_per_host']) == (1, 2), one)

    # If NCCL took long, another algorithm is chosen, and a new measurement replaces the old one.
    prices['all_gather', 'nccl']['ns'] = [4e12, 4e12]
    prices['all_gather', 'staged']['ns'] = [1, 1]
    text['rules'] = []
    made.write_text(json.dumps(text), encoding='utf-8')
    again = pathlib.Path(folder) / 'again.json'
    followed = rows('--coll', 'all_gather', '-o', again, FSCCL_TUNING_FILE=str(made))
    expect({row['chosen'] for row in followed} == {'staged'}, followed)
    kept = json.loads(again.read_text(encoding='utf-8'))['native']
    expect(sorted((one['operation'], one['algorithm']) for one in kept) == sorted(prices), kept)
    expect(all(max(one['ns']) < 1e12 for one in kept), kept)
    expect('of 2 points' in run('--coll', 'all_gather'), 'the table')

    # For units a rule forces each algorithm, and then the times decide. Both apply to GPUs only.
    units = rows('--coll', 'unit_unshard', '-o', made)
    expect([set(row['forced_us']) for row in units] == [{'p2p', 'collectives'}] * 2, units)
    expect({row['chosen'] for row in units} == {'p2p'}, units)
    text = json.loads(made.read_text(encoding='utf-8'))
    expect(
        {(one['operation'], one['algorithm']) for one in text['native']}
        == {('unit_unshard', 'p2p'), ('unit_unshard', 'collectives')},
        text,
    )
    for one in text['native']:
        one['ns'] = [4e12, 4e12] if one['algorithm'] == 'p2p' else [1, 1]
    text['rules'] = []
    made.write_text(json.dumps(text), encoding='utf-8')
    followed = rows('--coll', 'unit_unshard', FSCCL_TUNING_FILE=str(made))
    expect({row['chosen'] for row in followed} == {'collectives'}, followed)
    refused = run_program(perf, 'tune', '--ranks', '2', '--coll', 'unit_unshard', status=2)
    expect('unit_unshard is tuned on GPUs alone: add --memory gpu' in refused, refused)
