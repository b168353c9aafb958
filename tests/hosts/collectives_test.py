#!/usr/bin/env python3
"""Tests that results between hosts are right, without an error: hosts.py --hosts 3 [--loss 1] --
collectives_test.py fsccl-perf

Runs every collective, and steps of FSDP on units of all ranks, with 1 and with 2 ranks on each
host. fsccl-perf checks all elements.
"""

import itertools
import json
import subprocess
import sys
import tempfile

import ranks

SIZES = ['-b', '64', '-e', '1M', '-f', '128', '-n', '3', '-w', '1', '-m', '1']


def lost():
    """Returns how many packets TCP has sent again, on all hosts."""
    total = 0
    for enter, _ in ranks.hosts():
        lines = subprocess.run(
            [*enter, 'cat', '/proc/net/snmp'], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.splitlines()
        names, values = (line.split() for line in lines if line.startswith('Tcp:'))
        total += int(values[names.index('RetransSegs')])
    return total


UNITS = {
    'name': 'small',
    'units': [
        {'name': name, 'params': [['w', [301, 97]], ['b', [301]]]} for name in ('a', 'b', 'c')
    ],
}


def commands(perf, model):
    yield [perf, 'collectives', '--coll', 'all', *SIZES]
    for options in (
        ['--sharing', 'shared'],
        ['--sharing', 'private', '--gradients', 'private'],
        ['--by-parameter', '--layout', 'flat'],
    ):
        yield [perf, 'step', '--model', model, *options]


def main():
    perf, losses = sys.argv[1], sys.argv[2:] == ['lossy']
    failed = 0
    with tempfile.NamedTemporaryFile('w', suffix='.json') as model:
        json.dump(UNITS, model)
        model.flush()
        for per_host, command in itertools.product((1, 2), commands(perf, model.name)):
            for rank, (status, output, errors) in enumerate(
                ranks.ends(ranks.start(command, per_host))
            ):
                if status != 0:
                    failed += 1
                    print(
                        f'{" ".join(command)}, {per_host} ranks on each host: rank {rank} ended '
                        f'with {status}: '
                        f'{errors}{output if rank == 0 else ""}'
                    )
    if losses and lost() == 0:
        failed += 1
        print('no packet was lost: this test has tested nothing')
    sys.exit(1 if failed else 0)


main()
