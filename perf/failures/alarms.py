#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts false alarms: more ranks than cores compute, between hosts that lose packets, and no rank
may be called silent or dead.

  tests/hosts/hosts.py --hosts 2 --loss 1 --rate 100mbit -- \\
      perf/failures/alarms.py --library build/libfsccl.so.0 --hosts 2
                        [--ranks 32] [--minutes 30] [--compute 30]

In every other round each rank computes for --compute seconds; in the others every second rank does.
Then all ranks gather, and check what they got. The script prints the number of rounds, how often a
rank was called a suspect or dead, and what failed. The exit status is 0 if there was no alarm and
no failure.
"""

import argparse
import os
import re
import sys
import time

from ranks import Job, say

PATIENCE_S = 900  # for a round, because the machine may have other work
ALARMS = re.compile(r'is a suspect|is dead')


def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10000))


def rounds(rank, options):
    os.dup2(1, 2)  # so that the job reads the library's warnings, too
    end, number, over = time.monotonic() + options.minutes * 60, 0, False
    while not over:
        if number % 2 == 0 or rank.rank % 2 == 0:
            compute(options.compute)
        mine = 2 * rank.rank + (rank.rank == 0 and time.monotonic() >= end)
        found = rank.gather(rank.comm, mine, rank.ranks)
        over = found[0] == 1
        if [value - (over and other == 0) for other, value in enumerate(found)] != [
            2 * other for other in range(rank.ranks)
        ]:
            raise SystemExit(f'rank {rank.rank}: gathered {found}')
        number += 1
    say('rounds', number)
    rank.must(rank.barrier(rank.comm))
    say('over', 0)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--library', required=True)
    for name, value in (('ranks', 32), ('hosts', 1), ('minutes', 30), ('compute', 30)):
        parser.add_argument(
            f'--{name}', type=float if name in ('minutes', 'compute') else int, default=value
        )
    options = parser.parse_args()
    settings = {'FSCCL_TIMEOUT_MS': str(PATIENCE_S * 1000), 'FSCCL_LOG_LEVEL': 'warn'}
    job = Job(options, options.ranks, rounds, options, lambda rank: settings)
    begin, problem = time.monotonic(), ''
    try:
        number = job.expect('rounds', seconds=options.minutes * 60 + 2 * PATIENCE_S)[0]
        job.expect('over')
    except SystemExit as error:
        number, problem = 0, f'; {error}'
    minutes = (time.monotonic() - begin) / 60
    job.end()
    alarms = [line for text in job.text for line in text.split('\n') if ALARMS.search(line)]
    host = lambda rank: rank * options.hosts // options.ranks
    pairs = [
        tuple(map(int, re.search(r'fsccl\[(\d+)\].* rank (\d+) ', line).groups()))
        for line in alarms
    ]
    near, dead = (
        sum(host(by) == host(of) for by, of in pairs),
        sum('is dead' in line for line in alarms),
    )
    print(
        f'{options.ranks} ranks on {options.hosts} hosts and {os.cpu_count()} cores for '
        f'{minutes:.1f} minutes, computing '
        f'{options.compute:g} s, load {os.getloadavg()[1]:.0f}: {number} rounds, {len(alarms)} '
        f'false alarms, {near} of them of '
        f'ranks of the same host, {dead} of a death{problem}'
    )
    for line in alarms[:20]:
        print(line.rstrip())
    for rank, text in enumerate(job.text if problem else []):
        print(
            f'rank {rank} said: {text.strip()[-500:]}'
        )  # the output of all ranks, as one of them failed first
    sys.exit(1 if alarms or problem else 0)


if __name__ == '__main__':
    main()
