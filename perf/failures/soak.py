"""Soak: ranks do checked collectives for a while, some are killed, and who lives begins again. Prints wrong results, drift of
descriptors and memory of who lived, and what is left after mass kills (files in /dev/shm and /tmp, processes).

usage: soak.py LIBRARY [--minutes 1] [--ranks 4] [--kill-every 2] [--mass-kills 20]

In each job the unique id goes through a pipe to the ranks, they join, gather and reduce what each can check, and one of them is
killed at a moment of its own (a seed). Rank 0 lives through all jobs; its descriptors and memory are what drifts.
"""
import argparse
import ctypes
import os
import random
import signal
import sys
import time

PEER_DEAD, LINK = -60, -40
MOST_KIB = 1024  # of drift
COUNT = 20000
FLOAT32 = 10


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 256)]


class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("version", ctypes.c_int), ("unique_id", ctypes.POINTER(Id)),
                ("all_gather", ctypes.c_void_p), ("all_gather_context", ctypes.c_void_p), ("rank", ctypes.c_int),
                ("ranks", ctypes.c_int), ("nonblocking", ctypes.c_int), ("timeout_ms", ctypes.c_int64), ("name", ctypes.c_char_p)]


class Op(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("reserved", ctypes.c_int32), ("scale", ctypes.c_double)]


def join(lib, unique, rank, ranks):
    version = ctypes.c_int()
    lib.fsccl_version(ctypes.byref(version))
    config = Config(ctypes.sizeof(Config), version.value, ctypes.pointer(unique), None, None, rank, ranks, 0, 20000, None)
    comm = ctypes.c_void_p()
    status = lib.fsccl_comm_create(ctypes.byref(config), ctypes.byref(comm))
    return (comm if status == 0 else None), status


def work(lib, comm, rank, ranks, until):
    """Rounds of an all-gather and an all-reduce until the time or an error; (rounds, wrong numbers, the error or 0)."""
    part, whole = (ctypes.c_float * COUNT)(), (ctypes.c_float * (COUNT * ranks))()
    done = wrong = status = 0
    while time.monotonic() < until:
        part[:] = [float(rank * 1000 + done % 100)] * COUNT
        status = lib.fsccl_all_gather(part, whole, ctypes.c_size_t(COUNT), FLOAT32, comm, None, None)
        if status:
            break
        for other in range(ranks):
            values = whole[other * COUNT:(other + 1) * COUNT]
            wrong += COUNT - values.count(float(other * 1000 + done % 100))
        status = lib.fsccl_all_reduce(part, whole, ctypes.c_size_t(COUNT), FLOAT32, Op(0, 0, 1.0), comm, None, None)
        if status:
            break
        total = float(sum(other * 1000 + done % 100 for other in range(ranks)))
        wrong += COUNT - whole[:COUNT].count(total)
        done += 1
    return done, wrong, status


def memory_kib():
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("Rss")).split()[1])


def left_behind():
    names = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")} | {f"/tmp/{name}" for name in os.listdir("/tmp")}
    return {name for name in names if "fsccl" in name.rsplit("/", 1)[1]}


def start(lib, unique, ranks, seconds, wrong_to=None):
    """Ranks 1 .. as children."""
    children = []
    for rank in range(1, ranks):
        child = os.fork()
        if child == 0:
            comm = join(ctypes.CDLL(lib), unique, rank, ranks)[0]
            wrong = work(ctypes.CDLL(lib), comm, rank, ranks, time.monotonic() + seconds)[1] if comm else 0
            if wrong and wrong_to is not None:
                os.write(wrong_to, b"x")
            os._exit(0)
        children.append(child)
    return children


def lifetime(lib_path, ranks, seconds, kill_every, seed):
    """Rank 0 of many jobs, one after the other."""
    chance = random.Random(seed)
    # Children are forked by a process that has not used the library: a helper that gets each id through a pipe.
    ask, tell = os.pipe(), os.pipe()
    wrong_pipe = os.pipe()
    if os.fork() == 0:
        os.close(ask[1])
        while True:
            raw = os.read(ask[0], 256)
            if len(raw) < 256:
                os._exit(0)
            unique = Id((ctypes.c_ubyte * 256)(*raw))
            children = start(lib_path, unique, ranks, kill_every * 3, wrong_pipe[1])
            time.sleep(kill_every * chance.uniform(0.3, 1.0))
            os.kill(chance.choice(children), signal.SIGKILL)
            for child in children:
                os.waitpid(child, 0)
            os.write(tell[1], b"r")
    os.close(ask[0])
    lib = ctypes.CDLL(lib_path)
    rounds = jobs = wrong = failed = 0
    drift = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        unique = Id()
        if lib.fsccl_unique_id_create(ctypes.byref(unique)):
            failed += 1
            break
        os.write(ask[1], bytes(unique.bytes))
        comm, status = join(lib, unique, 0, ranks)
        if comm:
            done, bad, status = work(lib, comm, 0, ranks, time.monotonic() + kill_every * 3)
            rounds, wrong = rounds + done, wrong + bad
            failed += lib.fsccl_comm_destroy(comm) != 0
        failed += status not in (PEER_DEAD, LINK)  # somebody was killed in each job
        os.read(tell[0], 1)
        jobs += 1
        drift.append((len(os.listdir("/proc/self/fd")), memory_kib()))
    os.close(ask[1])
    os.wait()
    os.set_blocking(wrong_pipe[0], False)
    try:
        wrong += len(os.read(wrong_pipe[0], 65536))
    except BlockingIOError:
        pass
    first = drift[min(2, len(drift) - 1)]  # after caches have filled
    print(f"soak: {seconds:.0f} s, {ranks} ranks, {jobs} jobs each with a kill, {rounds} checked rounds of rank 0: {wrong} wrong, "
          f"{failed} odd errors, descriptors {drift[-1][0] - first[0]:+d}, memory {drift[-1][1] - first[1]:+d} KiB")
    return wrong == 0 and failed == 0 and drift[-1][0] == first[0] and drift[-1][1] - first[1] <= MOST_KIB


def mass_kills(lib_path, ranks, kills, seed):
    """All ranks killed at once, at any moment from the start on."""
    chance = random.Random(seed)
    before = left_behind()
    processes = 0
    for _ in range(kills):
        job = os.fork()
        if job == 0:
            os.setpgid(0, 0)
            lib = ctypes.CDLL(lib_path)
            reader, writer = os.pipe()
            if os.fork() == 0:  # has not used the library: the parent of ranks 1 ..
                raw = os.read(reader, 256)
                start(lib_path, Id((ctypes.c_ubyte * 256)(*raw)), ranks, 30)
                while True:
                    signal.pause()
            unique = Id()
            lib.fsccl_unique_id_create(ctypes.byref(unique))
            os.write(writer, bytes(unique.bytes))
            comm = join(lib, unique, 0, ranks)[0]
            if comm:
                work(lib, comm, 0, ranks, time.monotonic() + 30)
            os._exit(0)
        time.sleep(chance.uniform(0.05, 0.6))
        try:
            os.killpg(job, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(job, signal.SIGKILL)
        os.waitpid(job, 0)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                os.killpg(job, 0)
            except ProcessLookupError:
                break
            time.sleep(0.005)
        else:
            processes += 1
    left = left_behind() - before
    print(f"mass kills: {kills} of {ranks} ranks: {len(left)} files, {processes} groups of processes left {sorted(left)[:3]}")
    return not left and processes == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kill-every", type=float, default=2, help="seconds")
    parser.add_argument("--mass-kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ.setdefault("FSCCL_TRANSPORT", "shm")
    good = mass_kills(options.library, options.ranks, options.mass_kills, options.seed)
    good = lifetime(options.library, options.ranks, options.minutes * 60, options.kill_every, options.seed) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
