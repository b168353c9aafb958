#!/usr/bin/env python3
"""Runs the same program under each launcher. Every rank finds its place, and communicators are made
without any setting by the program.

usage: launchers_test.py openmpi|openmpi5|mpich|prterun|slurm|slurm-nodes PLACE TRAIN
"""

import os
import pathlib
import sys
import tempfile

import launchers
import slurm
from launchers import expect, finish, run, start

RANKS = 4


def places(output):
    """Returns the lines of tests/launchers/place.c, by rank."""
    found = {}
    for words in map(str.split, output.splitlines()):
        if len(words) >= 8 and words[1].isdigit():
            found[int(words[1])] = words
    return found


def check_one_host(output, launcher, ranks=RANKS, address='127.0.0.1'):
    """Checks that all ranks are there, on one host, and agree on where to meet. Returns the address
    and port where they meet."""
    found = places(output)
    expect(sorted(found) == list(range(ranks)), f'{ranks} ranks of {launcher}:\n{output}')
    numbers = [str(rank) for rank in range(ranks)] * 2
    ports = {words[7] for words in found.values()}
    for rank, words in found.items():
        wanted = [
            launcher,
            str(rank),
            str(ranks),
            str(rank),
            str(ranks),
            '1',
            address,
            min(ports),
            *numbers,
        ]
        expect(words == wanted, f'rank {rank}: {words} instead of {wanted}')
    return ports.pop()


def check_train(output, ranks=RANKS):
    expect(f'{ranks} ranks: test accuracy' in output, output)


# Variables that a container may set for its first process.
STALE = {'RANK': 0, 'WORLD_SIZE': 1, 'MASTER_ADDR': 'localhost', 'MASTER_PORT': 29500}


def check_stale(start_ranks, place, launcher, said):
    """If RANK and WORLD_SIZE are left over in the environment, that is an error, unless
    FSCCL_LAUNCHER or torchrun says which variables count. `start_ranks(*words, **variables)` starts
    ranks under the launcher, whose name in FSCCL_LAUNCHER is `said`."""
    errors = start_ranks(place, status=None, **STALE)
    for words in (
        'RANK=0, WORLD_SIZE=1, but',
        f'has started {RANKS} ranks',
        f'FSCCL_LAUNCHER={said} or FSCCL_LAUNCHER=torchrun',
    ):
        expect(words in errors, f'{launcher}: {words} is not in:\n{errors}')
    right = start_ranks(place, '--look', FSCCL_LAUNCHER=said, **STALE)
    expect(sorted(places(right)) == list(range(RANKS)), f'{launcher}, asked for by name:\n{right}')
    below = start_ranks(place, '--look', TORCHELASTIC_RUN_ID='run', **STALE)
    expect(below.count('torchrun 0 1 ') == RANKS, f'torchrun below {launcher}:\n{below}')


def check_launcher(name, place, train):
    command, called = (
        launchers.command(name, RANKS) or launchers.skip(launchers.missing(name)),
        launchers.called(name),
    )
    jobs = [
        start(*command, place) for _ in range(2)
    ]  # two jobs at the same time, whose ranks must not meet
    for job in jobs:
        check_one_host(finish(job), called)
    check_one_host(run(*command, 'bash', '-c', '"$0"; exit $?', place), called)  # below a shell
    check_train(run(*command, train))
    check_stale(
        lambda *words, **more: run(*command, *words, **more), place, called, launchers.setting(name)
    )
    if name == 'mpich':
        check_mpich_without_its_socket(command, place)


def check_mpich_without_its_socket(command, place):
    closing = ['bash', '-c', 'exec {PMI_FD}>&-; exec "$0"', place]
    errors = run(*command, *closing, status=None)
    expect('set MASTER_ADDR and MASTER_PORT alike on all ranks' in errors, errors)
    named = ['-genv', 'MASTER_ADDR', '127.0.0.1', '-genv', 'MASTER_PORT', '29500']
    expect(
        check_one_host(run(*command, *named, *closing), 'MPICH') == '29500',
        'MASTER_PORT is not what was set',
    )


def check_slurm(place, train):
    with slurm.Slurm(nodes=1) as cluster:
        srun = ['srun', '-n', RANKS]
        check_one_host(cluster.run(*srun, place), 'Slurm')
        check_train(cluster.run(*srun, train))
        check_one_host(cluster.run(*srun, '--mpi=pmi2', place), 'Slurm')
        if 'pmix' in cluster.run('sh', '-c', 'srun --mpi=list 2>&1'):
            check_one_host(cluster.run(*srun, '--mpi=pmix', place), 'Slurm')
        # A WORLD_SIZE that a script has set must agree with srun's.
        check_one_host(cluster.run(*srun, place, WORLD_SIZE=RANKS), 'Slurm')
        expect(
            'WORLD_SIZE=3, but Slurm has started 4 ranks'
            in cluster.run(*srun, place, WORLD_SIZE=3, status=None),
            'no refusal',
        )
        check_stale(
            lambda *words, **more: cluster.run(*srun, *words, **more), place, 'Slurm', 'slurm'
        )
        check_stale(
            lambda *words, **more: cluster.run(*srun, '--mpi=pmi2', *words, **more),
            place,
            'Slurm',
            'slurm',
        )
        # In a job of 8 tasks a step of 4 tasks starts ranks, and so do Open MPI or MPICH. The job's
        # own shell is no rank.
        job = ['salloc', '-Q', '-n', '8']
        expect(
            cluster.run(*job, place) == 'no launcher\n',
            'the shell of a job takes itself for a rank',
        )
        by_hand = 'for r in 0 1 2 3; do RANK=$r WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT=29500 "$0" & done; wait'
        check_one_host(
            cluster.run(*job, 'bash', '-c', by_hand, place), 'torchrun', address='localhost'
        )
        check_one_host(
            cluster.run('srun', '-n', '1', 'bash', '-c', by_hand, place),
            'torchrun',
            address='localhost',
        )
        check_one_host(cluster.run(*job, *srun, place), 'Slurm')
        for name in ('openmpi', 'mpich'):
            if command := launchers.command(name, RANKS):
                check_one_host(cluster.run(*job, *command, place), launchers.called(name))


def check_nodes(place, train):
    """There are three nodes, all of which are this machine. The ranks find each other as between
    hosts, over TCP and with a secret."""
    with slurm.Slurm(nodes=3) as cluster, tempfile.TemporaryDirectory() as folder:
        srun = ['srun', '-N', '3', '-n', '5']
        looked = places(cluster.run(*srun, place, '--look'))
        expect({words[6] for words in looked.values()} == {'n1'}, f'rank 0 is on n1: {looked}')
        expect(
            [looked[rank][3:6] for rank in range(5)]
            == [
                ['0', '3', '0'],
                ['1', '3', '0'],
                ['2', '3', '0'],
                ['0', '1', '0'],
                ['0', '1', '0'],
            ],
            f'places on nodes: {looked}',
        )
        expect(
            'FSCCL_JOB_SECRET_FILE' in cluster.run(*srun, place, status=None),
            'ranks join without a secret',
        )
        secret = pathlib.Path(folder) / 'secret'
        secret.touch(mode=0o600)
        secret.write_text(os.urandom(32).hex(), encoding='utf-8')
        output = cluster.run(*srun, place, MASTER_ADDR='127.0.0.1', FSCCL_JOB_SECRET_FILE=secret)
        expect(
            {tuple(words[8:]) for words in places(output).values()} == {tuple('01234' * 2)}, output
        )
        check_train(
            cluster.run(*srun, train, MASTER_ADDR='127.0.0.1', FSCCL_JOB_SECRET_FILE=secret), 5
        )


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    name, *programs = sys.argv[1:]
    if name in launchers.ON_ONE_HOST:
        check_launcher(name, *programs)
        return
    if missing := slurm.missing():
        launchers.skip(missing)
    {'slurm': check_slurm, 'slurm-nodes': check_nodes}[name](*programs)


if __name__ == '__main__':
    main()
