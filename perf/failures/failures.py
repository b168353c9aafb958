#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How soon ranks learn that one of them has died or given up, and go on without it:

    failures.py --library build/libfsccl.so.0 [--ranks 8] [--hosts 1] [--rounds 50] [--aborts 200] [--shrink-ranks 64] [--shrinks 5]

kill:    from kill -9 of one rank, for which the others wait in a barrier, until all of them have returned with FSCCL_ERR_PEER_DEAD
         and its number. A job for each round; the ranks are killed in turn.
abort:   from fsccl_comm_abort() on one rank until the others have returned from the barrier in which they waited.
shrink:  from the kill until all survivors have made a new communicator and gathered the right ranks on it.

Ranks are processes. With --hosts over 1 they believe to be on so many hosts, and those of different ones reach each other by UCX,
of which UCX_TLS and UCX_NET_DEVICES choose the way. The clock is CLOCK_MONOTONIC, the same for all. Times of the slowest rank; p50
and p99 of all rounds.
"""
import argparse
import ctypes
import os
import select
import signal
import sys
import time

PEER_DEAD, INT64 = -60, 6
TIMEOUT_S = 60


class ErrorInfo(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("code", ctypes.c_int), ("rank", ctypes.c_int), ("peer", ctypes.c_int),
                ("sequence", ctypes.c_uint64), ("operation", ctypes.c_char_p), ("text", ctypes.c_char_p)]


class Rank:
    """In a process of its own."""

    def __init__(self, library, rank, ranks):
        self.lib, self.rank, self.ranks = ctypes.CDLL(library), rank, ranks
        self.lib.fsccl_status_string.restype = ctypes.c_char_p
        self.comm = ctypes.c_void_p()
        self.must(self.lib.fsccl_comm_create(None, ctypes.byref(self.comm)))

    def must(self, status):
        if status < 0:
            raise SystemExit(f"rank {self.rank}: {self.lib.fsccl_status_string(status).decode()}: {self.error().text.decode()}")

    def barrier(self, comm):
        return self.lib.fsccl_barrier(comm, None, None)

    def gather(self, comm, value, ranks):
        mine, all_of = ctypes.c_int64(value), (ctypes.c_int64 * ranks)()
        self.must(self.lib.fsccl_all_gather(ctypes.byref(mine), all_of, ctypes.c_size_t(1), INT64, comm, None, None))
        return list(all_of)

    def error(self):
        info = ErrorInfo(size=ctypes.sizeof(ErrorInfo))
        self.lib.fsccl_last_error(ctypes.byref(info))
        return info


def until_killed(rank, victim):
    """Waits in a barrier that never completes; what it ended with, and when."""
    rank.must(rank.barrier(rank.comm))
    say("ready", 0)
    if rank.rank == victim:
        while True:
            signal.pause()
    status = rank.barrier(rank.comm)
    now = time.monotonic_ns()
    if status != PEER_DEAD or rank.error().peer != victim:
        raise SystemExit(f"rank {rank.rank}: barrier ended with {status} and rank {rank.error().peer}, {victim} was killed")
    say("told", now)


def until_shrunk(rank, victim):
    until_killed(rank, victim)
    made = ctypes.c_void_p()
    rank.must(rank.lib.fsccl_comm_shrink(rank.comm, None, ctypes.byref(made)))
    found = rank.gather(made, rank.rank, rank.ranks - 1)
    now = time.monotonic_ns()
    if found != [other for other in range(rank.ranks) if other != victim]:
        raise SystemExit(f"rank {rank.rank}: gathered {found}")
    say("shrunk", now)


def aborts(rank, rounds):
    for number in range(rounds):
        part = ctypes.c_void_p()
        rank.must(rank.lib.fsccl_comm_split(rank.comm, 0, 0, None, ctypes.byref(part)))
        rank.must(rank.barrier(rank.comm))  # all have it
        if rank.rank == number % rank.ranks:
            time.sleep(0.005)  # the others wait by then, and sleep
            begin = time.monotonic_ns()
            rank.must(rank.lib.fsccl_comm_abort(part))
        else:
            begin = 0
            if rank.barrier(part) >= 0:
                raise SystemExit("a barrier that was aborted has succeeded")
        ends = time.monotonic_ns()
        begins, ended = rank.gather(rank.comm, begin, rank.ranks), rank.gather(rank.comm, ends, rank.ranks)
        if rank.rank == 0:
            say("abort", max(ended) - max(begins))
        rank.must(rank.lib.fsccl_comm_destroy(part))
    rank.must(rank.lib.fsccl_comm_destroy(rank.comm))


def say(what, number):
    os.write(1, f"{what} {number}\n".encode())


class Job:
    """Ranks as processes, and the lines that they say."""
    count = 0

    def __init__(self, options, ranks, body, argument):
        Job.count += 1
        self.ranks, self.processes, self.pipes, self.text = ranks, [], [], [""] * ranks
        for rank in range(ranks):
            reader, writer = os.pipe()
            process = os.fork()
            if process == 0:
                os.dup2(writer, 1)
                os.closerange(3, 3 + 2 * ranks + 16)
                port = 20000 + (os.getppid() * 61 + Job.count) % 40000
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                                  TORCHELASTIC_RUN_ID=f"{os.getppid()}/{Job.count}", FSCCL_TIMEOUT_MS=str(TIMEOUT_S * 1000))
                if options.hosts > 1:
                    os.environ.update(FSCCL_HOST_ID=f"host {rank * options.hosts // ranks}", FSCCL_INSECURE="1")
                else:
                    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
                try:
                    body(Rank(options.library, rank, ranks), argument)
                    while True:
                        signal.pause()  # its end would be a death that others see
                except SystemExit as error:
                    print(error, file=sys.stderr)
                finally:
                    os._exit(1)
            os.close(writer)
            self.processes.append(process)
            self.pipes.append(reader)

    def expect(self, word, count=1, of=None, but=-1):
        """The numbers of `count` lines of each rank, or of one, that begin with `word`."""
        deadline = time.monotonic() + TIMEOUT_S
        wanted = [rank for rank in range(self.ranks) if rank != but and of in (None, rank)]
        while True:
            lines = [[line.split() for line in self.text[rank].split("\n")[:-1]] for rank in wanted]
            found = [[int(number) for said, number in some if said == word] for some in lines]
            if all(len(numbers) >= count for numbers in found):
                return [number for numbers in found for number in numbers]
            ready = select.select(self.pipes, [], [], max(0, deadline - time.monotonic()))[0]
            pieces = [(self.pipes.index(pipe), os.read(pipe, 65536).decode()) for pipe in ready]
            for rank, piece in pieces:
                self.text[rank] += piece
                if not piece and rank in wanted and self.text[rank].count(word + " ") < count:
                    raise SystemExit(f"rank {rank} ended before it said '{word}'")
            if not ready:
                raise SystemExit(f"not all ranks said '{word}' in {TIMEOUT_S} s")

    def kill(self, victim):
        time.sleep(0.02)  # the others sleep in their barrier
        begin = time.monotonic_ns()
        os.kill(self.processes[victim], signal.SIGKILL)
        return begin

    def end(self):
        for process in self.processes:
            os.kill(process, signal.SIGKILL)
        for process in self.processes:
            os.waitpid(process, 0)
        for pipe in self.pipes:
            os.close(pipe)


def show(what, values_ns):
    values = sorted(value / 1e6 for value in values_ns)
    at = lambda part: values[min(len(values) - 1, int(part * len(values)))]
    print(f"{what}: p50 {at(0.5):.2f} ms, p99 {at(0.99):.2f} ms, most {values[-1]:.2f} ms, of {len(values)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    for name, value in (("ranks", 8), ("hosts", 1), ("rounds", 50), ("aborts", 200), ("shrink-ranks", 64), ("shrinks", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    where = f"ranks on {options.hosts} hosts (UCX)" if options.hosts > 1 else "ranks of one host"
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f} before")
    told, shrunk = [], []
    for number in range(options.rounds):
        victim = number % options.ranks
        job = Job(options, options.ranks, until_killed, victim)
        job.expect("ready")
        begin = job.kill(victim)
        told.append(max(job.expect("told", but=victim)) - begin)
        job.end()
    if told:
        show(f"kill, {options.ranks} {where}", told)
    if options.aborts:
        job = Job(options, options.ranks, aborts, options.aborts)
        show(f"abort, {options.ranks} {where}", job.expect("abort", options.aborts, of=0))
        job.end()
    for number in range(options.shrinks):
        victim = number * 7 % options.shrink_ranks
        job = Job(options, options.shrink_ranks, until_shrunk, victim)
        job.expect("ready")
        begin = job.kill(victim)
        shrunk.append(max(job.expect("shrunk", but=victim)) - begin)
        job.end()
    if shrunk:
        show(f"shrink and gather, {options.shrink_ranks} {where}", shrunk)


if __name__ == "__main__":
    main()
