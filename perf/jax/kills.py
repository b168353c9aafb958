#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times how soon Python has FSCCL's error when a process of a JAX program is killed.

usage: kills.py [--rounds N] [--ranks N] [--output FILE]

A round starts a job and kills its last rank with kill -9. One time lasts until the slowest of the
others has caught the exception of the sum in which it waited; another one until the system has
ended the killed process. The script prints p50, p99 and the longest in milliseconds, and appends
them to FILE in the form of perf/results. If fsccl_jax is not installed, FSCCL_JAX_LIBRARIES and
PYTHONPATH say where it is.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'tests/jax'))
import ranks as r  # pylint: disable=wrong-import-position


def one_round(count):
    """Returns the milliseconds until the others know, and until the process has ended."""
    last = count - 1
    with r.Job(r.SUM_UNTIL_ERROR.format(then=r.LAST_RANK_SLEEPS), count) as job:
        for rank in range(count):
            job.wait_for(rank, 'ready')
        time.sleep(0.5)
        begin = time.time()
        job.processes[last].kill()
        job.processes[last].wait()
        ended = time.time()
        _, outputs = job.wait(60, who=range(last))
    for output in outputs:
        if f'rank {last} of' not in output:
            sys.exit(f'rank {last} was killed, and that is not what the others say:\n{output}')
    caught = max(float(re.search(r'caught ([\d.]+)', output)[1]) for output in outputs)
    return 1e3 * (caught - begin), 1e3 * (ended - begin)


def figures(values):
    values = sorted(values)
    p99 = values[min(len(values) - 1, int(0.99 * len(values)))]
    return [round(value, 1) for value in (values[len(values) // 2], p99, values[-1])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--rounds', type=int, default=30)
    parser.add_argument('--ranks', type=int, default=2)
    parser.add_argument('--output', type=pathlib.Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    known, ended = zip(*(one_round(options.ranks) for _ in range(options.rounds)))
    row = {
        'kind': 'jax',
        'what': 'kill',
        'ranks': options.ranks,
        'rounds': options.rounds,
        'known_ms': figures(known),
        'ended_ms': figures(ended),
        'load': [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    print(json.dumps(row))
    if options.output:
        with options.output.open('a', encoding='utf-8') as file:
            file.write(json.dumps(row) + '\n')


if __name__ == '__main__':
    main()
