#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how soon ranks learn that one of them has died or given up, and go on without it.

  failures.py --library build/libfsccl.so.0 [--ranks 8] [--hosts 1] [--rounds 50] [--stops 20]
              [--cuts 0] [--aborts 200]
              [--shrink-ranks 64] [--shrinks 5] [--busy 0] [--transport shm|ucx|tcp]

kill:    from kill -9 of one rank, for which the others wait in a barrier, until all of them have
         returned with FSCCL_ERR_PEER_DEAD and its number. Each round has its own job; the ranks
         are killed in turn.
busy:    the same, while all ranks are in the middle of all-reduces of 4 MiB, one after the other;
         --busy is the number of rounds.
stop:    from SIGSTOP of one rank until all others call it a suspect (fsccl_comm_peer_state). Then
         the rank goes on. No other rank may have been called a suspect.
cut:     from the moment when the network card of the last host is down until all ranks but
         rank 0, which does not enter the barrier, have returned with FSCCL_ERR_PEER_DEAD. This needs
         the hosts of tests/hosts/hosts.py.
abort:   from fsccl_comm_abort() on one rank until the others have returned from the barrier in
         which they waited, with FSCCL_ERR_ABORTED and its number.
shrink:  from the kill until all survivors have made a new communicator and gathered the right ranks
         on it.

Ranks are processes. With --hosts over 1 they believe to be on so many hosts, and ranks of different
hosts reach each other by TCP, or by the transport that FSCCL_NETWORK names. With --transport all
ranks, also those of one host, use that transport. The clock is CLOCK_MONOTONIC, which is the same
for all processes. A time is that of the slowest rank; p50 and p99 are over all rounds. The exit
status is 0 if in each round every survivor had the right error in time.
"""

import argparse
import ctypes
import os
import random
import signal
import subprocess
import sys
import time

from ranks import Job, c, say, show

BUSY_ELEMENTS = 1 << 20
QUIET = {'FSCCL_LOG_LEVEL': 'error'}


def until_killed(rank, victim):
    """Waits in a barrier that never completes, and reports when it has ended with the right
    error."""
    rank.must(rank.barrier(rank.comm))
    say('ready', 0)
    if rank.rank == victim:
        while True:
            signal.pause()
    told_of(rank, victim, 'barrier', rank.barrier(rank.comm))


def told_of(rank, victim, what, status):
    now = time.monotonic_ns()
    if status != c.ERR_PEER_DEAD or rank.error().peer != victim:
        raise SystemExit(
            f'rank {rank.rank}: {what} ended with {status} and rank {rank.error().peer}, {victim} '
            f'was killed: '
            f'{rank.error().text.decode()}'
        )
    say('told', now)


def until_killed_at_work(rank, victim):
    """Runs all-reduces until one of them fails."""
    mine, sums = (ctypes.c_float * BUSY_ELEMENTS)(), (ctypes.c_float * BUSY_ELEMENTS)()
    status, number = 0, 0
    while status == 0:
        status = rank.lib.fsccl_all_reduce(
            mine,
            sums,
            BUSY_ELEMENTS,
            c.FLOAT32,
            c.Op(c.OP_SUM, 0, 1.0),
            rank.comm,
            None,
            None,
        )
        number += 1
        if number == 3:
            say('ready', 0)
    told_of(rank, victim, f'all-reduce {number}', status)


def until_shrunk(rank, victim):
    until_killed(rank, victim)
    made = ctypes.c_void_p()
    rank.must(rank.lib.fsccl_comm_shrink(rank.comm, None, ctypes.byref(made)))
    found = rank.gather(made, rank.rank, rank.ranks - 1)
    now = time.monotonic_ns()
    if found != [other for other in range(rank.ranks) if other != victim]:
        raise SystemExit(f'rank {rank.rank}: gathered {found}')
    say('shrunk', now)


def aborts(rank, rounds):
    for number in range(rounds):
        part = ctypes.c_void_p()
        rank.must(rank.lib.fsccl_comm_split(rank.comm, 0, 0, None, ctypes.byref(part)))
        rank.must(rank.barrier(rank.comm))  # all ranks have the communicator
        if rank.rank == number % rank.ranks:
            time.sleep(0.005)  # by then the others wait, and sleep
            begin = time.monotonic_ns()
            rank.must(rank.lib.fsccl_comm_abort(part))
        else:
            begin = 0
            status, by = rank.barrier(part), number % rank.ranks
            if status != c.ERR_ABORTED or rank.error().peer != by:
                raise SystemExit(
                    f'rank {rank.rank}: a barrier that rank {by} aborted ended with {status} and '
                    f'{rank.error().peer}'
                )
        ends = time.monotonic_ns()
        begins, ended = (
            rank.gather(rank.comm, begin, rank.ranks),
            rank.gather(rank.comm, ends, rank.ranks),
        )
        if rank.rank == 0:
            say('abort', max(ended) - max(begins))
        rank.must(rank.lib.fsccl_comm_destroy(part))
    rank.must(rank.lib.fsccl_comm_destroy(rank.comm))


def watch(rank, _):
    """Reports each rank that this one begins to call a suspect, and each that it calls alive
    again."""
    rank.must(rank.barrier(rank.comm))
    say('ready', 0)
    states, state = [0] * rank.ranks, ctypes.c_int()
    while True:
        for other in range(rank.ranks):
            rank.must(rank.lib.fsccl_comm_peer_state(rank.comm, other, ctypes.byref(state)))
            if state.value != states[other]:
                states[other] = state.value
                say(
                    f'{"suspect" if state.value == c.PEER_SUSPECT else "alive"}_{other}',
                    time.monotonic_ns(),
                )
        time.sleep(0.002)


def until_cut(rank, _):
    rank.must(rank.barrier(rank.comm))
    say('ready', 0)
    if rank.rank == 0:
        time.sleep(3600)  # so that the barrier waits
    status = rank.barrier(rank.comm)
    if status != c.ERR_PEER_DEAD:
        raise SystemExit(f'rank {rank.rank}: barrier ended with {status} where a host was cut off')
    say('told', time.monotonic_ns())


def stops(options):
    times, job = [], Job(options, options.ranks, watch, None, lambda rank: QUIET)
    job.expect('ready')
    for number in range(options.stops):
        victim, count = number % options.ranks, number // options.ranks + 1
        time.sleep(0.05 + 0.013 * (number % 8))  # at some moment between two heartbeats
        begin = time.monotonic_ns()
        os.kill(job.processes[victim], signal.SIGSTOP)
        seen = job.expect(f'suspect_{victim}', count, but=victim)
        times.append(max(seen) - begin)
        os.kill(job.processes[victim], signal.SIGCONT)
        job.expect(f'alive_{victim}', count, but=victim)
    job.end()
    words = sum(text.count('suspect_') for text in job.text)
    if words != options.stops * (options.ranks - 1):
        raise SystemExit(
            f'{words} words of suspects, for {options.stops} stops of one of {options.ranks} ranks'
        )
    return times


def cuts(options):
    times = []
    for _ in range(options.cuts):
        card = ['ip', '-n', f'host{options.hosts - 1}', 'link', 'set', 'eth0']
        job = Job(options, options.ranks, until_cut, None, lambda rank: QUIET)
        job.expect('ready')
        time.sleep(0.02)
        begin = time.monotonic_ns()
        subprocess.run([*card, 'down'], check=True)
        times.append(max(job.expect('told', but=0)) - begin)
        job.end()
        subprocess.run([*card, 'up'], check=True)
    return times


def after_kills(options, ranks, rounds, body, word):
    """Returns for each job the time in ns from the kill of one rank until all others have said
    `word`. The ranks are killed in turn. A round that goes wrong is printed and has no time."""
    times, chance = [], random.Random(1)
    for number in range(rounds):
        victim = number * 7 % ranks
        job = Job(options, ranks, body, victim)
        try:
            job.expect('ready')
            time.sleep(chance.uniform(0, 0.02))  # at some moment of an operation
            begin = job.kill(victim)
            times.append(max(job.expect(word, but=victim)) - begin)
        except SystemExit as error:
            print(f'round {number}: {error}', flush=True)
        finally:
            job.end()
    return times


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--library', required=True)
    for name, value in (
        ('ranks', 8),
        ('hosts', 1),
        ('rounds', 50),
        ('stops', 20),
        ('cuts', 0),
        ('aborts', 200),
        ('shrink-ranks', 64),
        ('shrinks', 5),
        ('busy', 0),
    ):
        parser.add_argument(f'--{name}', type=int, default=value)
    parser.add_argument('--transport', choices=['shm', 'ucx', 'tcp'])
    options = parser.parse_args()
    if options.transport:
        os.environ['FSCCL_TRANSPORT'] = options.transport
    network = options.transport or os.environ.get('FSCCL_NETWORK', 'auto')
    where = f'ranks on {options.hosts} hosts ({network})'
    if options.hosts == 1:
        where = f'ranks of one host ({options.transport or "shm"})'
    load = os.getloadavg()[0]
    print(f'{os.cpu_count()} cores, load {load:.1f} before')
    good = True

    def kills(what, ranks, rounds, body, word):
        nonlocal good
        times = after_kills(options, ranks, rounds, body, word)
        if times:
            show(f'{what}, {ranks} {where}', times)
        if len(times) < rounds:
            print(
                f'{what}, {ranks} {where}: WRONG in {rounds - len(times)} of {rounds} rounds',
                flush=True,
            )
            good = False

    kills('kill', options.ranks, options.rounds, until_killed, 'told')
    kills('kill at work', options.ranks, options.busy, until_killed_at_work, 'told')
    if options.stops:
        show(f'stop, {options.ranks} {where}', stops(options))
    if options.cuts:
        show(f'cut, {options.ranks} {where}', cuts(options))
    if options.aborts:
        job = Job(options, options.ranks, aborts, options.aborts)
        show(f'abort, {options.ranks} {where}', job.expect('abort', options.aborts, of=0))
        job.end()
    kills('shrink and gather', options.shrink_ranks, options.shrinks, until_shrunk, 'shrunk')
    sys.exit(0 if good else 1)


if __name__ == '__main__':
    main()
