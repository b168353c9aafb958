"""Tests `fsccl-perf tune`, which measures every plan and writes a tuning file, and that the choice
follows the file.

usage: tune_test.py FSCCL-PERF FSCCL-INFO
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from program import expect
from program import run as run_program

perf, info = sys.argv[1:]
QUICK = ('tune', '--ranks', '2', '-b', '64K', '-e', '256K', '-n', '5')


def run(program, *arguments, status=0, **variables):
    return run_program(
        program,
        *arguments,
        status=status,
        env={**os.environ, 'FSCCL_TIMEOUT_MS': '60000', **variables},
    )


def rows(*arguments, **variables):
    return [
        json.loads(line)
        for line in run(perf, *QUICK, *arguments, '--json', **variables).splitlines()
    ]


with tempfile.TemporaryDirectory() as folder:
    made, bad = pathlib.Path(folder) / 'made.json', pathlib.Path(folder) / 'bad.json'

    # The setting makes the choice bad on purpose: pieces of a page, sent at once.
    found = rows('--coll', 'all_gather,all_reduce', '-o', made, FSCCL_PLAN='all_gather=slots/4K')
    expect(len(found) == 2 * 2 * 2, found)
    for row in found:
        expect(row['best_us'] <= row['chosen_us'] and row['forced_us'], row)
        later = (
            row['chosen_us'] - row['best_us'] > row['spread_us']
        )  # the chosen plan is later than the best, as it asks first where buffers lie
        expect(row['behind'] == (later and row['best'] != row['chosen']), row)
    expect(
        {row['chosen'] for row in found if row['operation'] == 'all_gather'}
        == {'all_gather_slots/4096'},
        found,
    )
    expect(any(plan.startswith('all_gather_direct') for plan in found[0]['forced_us']), found[0])

    # The file that the program wrote is read again, and followed.
    text = json.loads(made.read_text(encoding='utf-8'))
    expect(text['fsccl_tuning'] == 1, text)
    run(info, 'explain', 'all_gather', '64K', '--tuning', made)
    text['rules'] = ['all_gather@1x2:65536-1048575=slots/16384', *text['rules']]
    made.write_text(json.dumps(text), encoding='utf-8')
    followed = rows('--coll', 'all_gather', FSCCL_TUNING_FILE=str(made))
    expect(
        {row['chosen'] for row in followed} == {'all_gather_slots', 'all_gather_slots/16384'},
        followed,
    )  # 64K go all at once
    again = pathlib.Path(folder) / 'again.json'
    rows('--coll', 'all_gather', '-o', again, FSCCL_TUNING_FILE=str(made))
    kept = json.loads(again.read_text(encoding='utf-8'))
    expect(kept['rules'][-len(text['rules']) :] == text['rules'], (kept, text))
    # Ranks that do not get a processor in time do not measure. Then the file has no costs, and a
    # later run may add them.
    expect(kept['costs'] == text['costs'] or not text['costs'], (kept, text))
    expect('of 4 points' in run(perf, *QUICK, '--coll', 'all_gather'), 'the table')

    # A rule that cannot be followed is reported once.
    log = pathlib.Path(folder) / 'log'
    ignored = 'FSCCL_NETWORK={} is not followed: FSCCL_TRANSPORT={}'
    for times, words, variables in (  # `times` is 2 for once a rank, and 1 for once a job
        (
            2,
            'FSCCL_PLAN is not followed for all_gather: all ranks are on one host',
            {'FSCCL_PLAN': 'all_gather=by_hosts'},
        ),
        (1, ignored.format('ucx', 'tcp'), {'FSCCL_TRANSPORT': 'tcp', 'FSCCL_NETWORK': 'ucx'}),
        (1, ignored.format('tcp', 'shm'), {'FSCCL_TRANSPORT': 'shm', 'FSCCL_NETWORK': 'tcp'}),
    ):
        log.write_text('', encoding='utf-8')
        run(
            perf,
            'collectives',
            '--ranks',
            '2',
            '--coll',
            'all_gather',
            '-b',
            '64K',
            '-e',
            '256K',
            '-n',
            '3',
            FSCCL_LOG_FILE=str(log),
            **variables,
        )
        said = log.read_text(encoding='utf-8')
        expect(said.count(words) == times, said)

    # An error stops all ranks.
    bad.write_text('{"fsccl_tuning": 1, "rules": [7]}', encoding='utf-8')
    for variables, words in (
        ({'FSCCL_TUNING_FILE': str(bad)}, ['bad.json', 'rules[0] must be a text']),
        ({'FSCCL_PLAN': 'all_gather=ring'}, ['FSCCL_PLAN', 'slots, direct, read']),
    ):
        said = run(perf, *QUICK, status=1, **variables)
        expect(all(word in said for word in words), said)
    # A plan that no rank can follow is reported once a rank, and the job goes on.
    said = run_program(
        perf,
        'collectives',
        '--ranks',
        '2',
        '--coll',
        'all_gather',
        '-b',
        '1M',
        '-e',
        '1M',
        '-n',
        '3',
        status=0,
        env={**os.environ, 'FSCCL_PLAN': 'all_gather=direct', 'FSCCL_TRANSPORT': 'shm'},
    )
    expect('all_gather' in said, said)

    # Rules from times of ranks that share a core are of no use elsewhere, and the program says so.
    done = subprocess.run(
        [perf, *QUICK, '--coll', 'all_gather', '--bind', 'none'],
        preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
        capture_output=True,
        text=True,
        check=True,
    )
    expect('ranks share cores' in done.stderr, done.stderr)
