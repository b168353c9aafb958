#!/usr/bin/env python3
"""Soak: ranks run checked collectives, some are killed, and rank 0 goes on with the next job.

The script reports wrong results, drift of descriptors and memory in the process that survives, and
what is left after mass kills (files, segments, sockets, processes).

usage: soak.py LIBRARY [--minutes 1] [--ranks 4] [--kill-every 2] [--mass-kills 20]

In each job the unique id goes to the ranks through a pipe. They join, gather, and reduce values
that each of them can check, and one of them is killed at a random moment (from a seed). Rank 0
lives through all jobs; drift is that of its descriptors and memory. Before these jobs, whole jobs
are killed at once, as many over shared memory as over TCP. If the system allows it, all of this
happens in namespaces without files, sockets and processes of other programs. The exit status is 0
if no result is wrong, nothing is left, each error is explained by a kill, and less than 1 MiB more
memory is in use.
"""

import argparse
import ctypes
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

from ranks import by_id, c, load

MOST_KIB = 1024  # the limit of the drift of memory
# Resident memory is judged from so many jobs on: after the first hundreds it may be a megabyte more
# than before, but it does not grow further.
JUDGED = 1000
COUNT = 20000
SUM = c.Op(c.OP_SUM, 0, 1.0)
TIME_WAIT = '06'  # the state of a connection that belongs to no process any more
END = struct.Struct('=?iI')


def join(lib, unique, rank, ranks):
    config, comm = by_id(lib, unique, rank, ranks, 20000), ctypes.c_void_p()
    status = lib.fsccl_comm_create(ctypes.byref(config), ctypes.byref(comm))
    return (comm if status == 0 else None), status


def work(lib, comm, rank, ranks, until):
    """Runs rounds of an all-gather and an all-reduce until the time is over or one fails. Returns
    the number of rounds, that of wrong values, and the error or 0."""
    part, whole = (ctypes.c_float * COUNT)(), (ctypes.c_float * (COUNT * ranks))()
    done = wrong = status = 0
    while time.monotonic() < until:
        part[:] = [float(rank * 1000 + done % 100)] * COUNT
        status = lib.fsccl_all_gather(part, whole, COUNT, c.FLOAT32, comm, None, None)
        if status:
            break
        for other in range(ranks):
            values = whole[other * COUNT : (other + 1) * COUNT]
            wrong += COUNT - values.count(float(other * 1000 + done % 100))
        status = lib.fsccl_all_reduce(part, whole, COUNT, c.FLOAT32, SUM, comm, None, None)
        if status:
            break
        total = float(sum(other * 1000 + done % 100 for other in range(ranks)))
        wrong += COUNT - whole[:COUNT].count(total)
        done += 1
    return done, wrong, status


def explained(joined, status):
    """Returns true if the kill of the job's victim explains this end. If a rank never joins, the
    others may wait for it until their time is over."""
    return status in (c.ERR_PEER_DEAD, c.ERR_LINK) or (status == c.ERR_TIMEOUT and not joined)


def unread(pipe):
    """Returns what was written into the pipe, without blocking."""
    try:
        return os.read(pipe, 65536)
    except BlockingIOError:
        return b''


class Allocated(ctypes.Structure):
    """The result of mallinfo2() of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            'arena',
            'ordblks',
            'smblks',
            'hblks',
            'hblkhd',
            'usmblks',
            'fsmblks',
            'uordblks',
            'fordblks',
            'keepcost',
        )
    ]


def allocated_kib():
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = Allocated
    told = ask()
    return (told.uordblks + told.hblkhd) // 1024


def resident_kib():
    with open('/proc/self/smaps_rollup', encoding='ascii') as file:
        return int(next(line for line in file if line.startswith('Rss')).split()[1])


def lines_of(path):
    try:
        with open(path, encoding='ascii', errors='replace') as file:
            return file.read().splitlines()[1:]
    except FileNotFoundError:
        return []


def traces():
    """Returns the names of everything that a job could leave, also that of other programs: files,
    memory and sockets with a name, and processes."""
    found = {
        f'{folder}/{name}'
        for folder in ('/dev/shm', tempfile.gettempdir())
        for name in os.listdir(folder)
    }
    found |= {
        f'/tmp/{name}' for name in os.listdir('/tmp') if 'fsccl' in name
    }  # files that were made elsewhere than in TMPDIR
    for kind in ('shm', 'sem', 'msg'):
        found |= {
            f'{kind} {line.split()[1]} of System V' for line in lines_of(f'/proc/sysvipc/{kind}')
        }
    found |= {f'process {name}' for name in os.listdir('/proc') if name.isdigit()}
    found |= {f'socket {" ".join(line.split()[6:])}' for line in lines_of('/proc/net/unix')}
    for kind in ('tcp', 'tcp6', 'udp', 'udp6'):
        fields = [line.split() for line in lines_of(f'/proc/net/{kind}')]
        found |= {
            f'{kind} {line[1]} {line[2]} in state {line[3]}'
            for line in fields
            if line[3] != TIME_WAIT
        }
    return found


def left_since(before):
    """Returns what exists beside `before`, after the kernel has had time to remove what belonged to
    dead processes."""
    deadline = time.monotonic() + 5
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        left = traces() - before
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.005)


def sees_what_is_left():
    """Returns true if traces() sees one of each kind that is left on purpose."""
    before = traces()
    with (
        tempfile.NamedTemporaryFile(dir='/dev/shm'),
        tempfile.NamedTemporaryFile(),
        socket.socket(socket.AF_UNIX) as local,
        socket.create_server(('127.0.0.1', 0)),
    ):
        local.bind('\0soak')
        child = os.fork()
        if child == 0:
            while True:
                signal.pause()
        kinds = sorted(re.match('/dev/shm|/|[a-z]+', trace).group() for trace in traces() - before)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return kinds == ['/', '/dev/shm', 'process', 'socket', 'tcp'] and not left_since(before)


def start(lib, unique, ranks, seconds, told=None):
    """Starts the ranks from 1 on as children. Each reports how it ended and how many values were
    wrong."""
    children = []
    for rank in range(1, ranks):
        child = os.fork()
        if child == 0:
            comm, status = join(load(lib), unique, rank, ranks)
            wrong = 0
            if comm:
                _, wrong, status = work(load(lib), comm, rank, ranks, time.monotonic() + seconds)
            if told is not None:
                os.write(told, END.pack(comm is not None, status, wrong))
            os._exit(0)
        children.append(child)
    return children


def lifetime(lib_path, ranks, seconds, kill_every, seed):
    """Runs rank 0 of many jobs, one after the other. Returns true if nothing went wrong."""
    chance = random.Random(seed)
    # Children are forked by a helper that has not used the library. It gets each id through a pipe.
    ask, tell = os.pipe(), os.pipe()
    ends = os.pipe()
    os.set_blocking(ends[0], False)
    if os.fork() == 0:
        os.close(ask[1])
        while True:
            raw = os.read(ask[0], 256)
            if len(raw) < 256:
                os._exit(0)
            unique = c.UniqueId((ctypes.c_ubyte * 256)(*raw))
            children = start(lib_path, unique, ranks, kill_every * 3, ends[1])
            time.sleep(kill_every * chance.uniform(0.3, 1.0))
            os.kill(chance.choice(children), signal.SIGKILL)
            for child in children:
                os.waitpid(child, 0)
            os.write(tell[1], b'r')
    os.close(ask[0])
    lib = load(lib_path)
    rounds = jobs = wrong = 0
    drift, others = [], []  # `others` are errors that no kill explains
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        unique = c.UniqueId()
        status = lib.fsccl_unique_id_create(ctypes.byref(unique))
        if status:
            others.append(status)
            break
        os.write(ask[1], bytes(unique.bytes))
        comm, status = join(lib, unique, 0, ranks)
        if comm:
            done, bad, status = work(lib, comm, 0, ranks, time.monotonic() + kill_every * 3)
            rounds, wrong = rounds + done, wrong + bad
            destroyed = lib.fsccl_comm_destroy(comm)
            others += [destroyed] if destroyed else []
        os.read(tell[0], 1)
        jobs += 1
        told = list(END.iter_unpack(unread(ends[0])))  # from all ranks but rank 0 and the victim
        wrong += sum(bad for _, _, bad in told)
        ends_of = [(comm is not None, status), *((joined, code) for joined, code, _ in told)]
        others += [code for joined, code in ends_of if not explained(joined, code)]
        drift.append((len(os.listdir('/proc/self/fd')), allocated_kib(), resident_kib()))
    os.close(ask[1])
    os.wait()
    # Resident memory goes up and down by megabytes with the threads of each job. A leak raises the
    # least of many values, so short runs are judged by allocated memory alone. The first jobs, in
    # which caches fill, do not count.
    third = max(1, (len(drift) - 3) // 3)
    descriptors, allocated, resident = (
        drift[-1][0] - drift[min(2, jobs - 1)][0],
        *(
            min(one[which] for one in drift[-third:])
            - min(one[which] for one in drift[3 : 3 + third] or drift)
            for which in (1, 2)
        ),
    )
    judged = '' if jobs >= JUDGED else ' (too few jobs to judge)'
    print(
        f'soak: {seconds:.0f} s, {ranks} ranks, {jobs} jobs each with a kill, {rounds} checked '
        f'rounds of rank 0: {wrong} wrong, '
        f'{len(others)} odd errors {others[:10]}, descriptors {descriptors:+d}; least of the last '
        f'third of the jobs over that of '
        f'the first: {allocated:+d} KiB allocated, {resident:+d} KiB resident{judged}',
        flush=True,
    )
    good = wrong == 0 and not others and descriptors == 0 and allocated <= MOST_KIB
    return good and (jobs < JUDGED or resident <= MOST_KIB)


def whole_job(lib_path, ranks, working):
    """Runs a job in its own process group until it is killed, and reports when the ranks are at
    work."""
    os.setpgid(0, 0)
    lib = load(lib_path)
    reader, writer = os.pipe()
    if os.fork() == 0:  # the parent of ranks 1 .. has not used the library
        raw = os.read(reader, 256)
        start(lib_path, c.UniqueId((ctypes.c_ubyte * 256)(*raw)), ranks, 30)
        while True:
            signal.pause()
    unique = c.UniqueId()
    lib.fsccl_unique_id_create(ctypes.byref(unique))
    os.write(writer, bytes(unique.bytes))
    comm = join(lib, unique, 0, ranks)[0]
    if comm:
        os.write(working, b'x')
        work(lib, comm, 0, ranks, time.monotonic() + 30)


def mass_kills(lib_path, transport, ranks, kills, seed):
    """Kills all ranks of a job at once, at a random moment after its start, again and again."""
    chance = random.Random(seed)
    os.environ['FSCCL_TRANSPORT'] = transport
    before, left, at_work, working = traces(), set(), 0, os.pipe()
    os.set_blocking(working[0], False)
    for _ in range(kills):
        job = os.fork()
        if job == 0:
            try:
                whole_job(lib_path, ranks, working[1])
            finally:
                os._exit(0)
        time.sleep(chance.uniform(0.05, 0.6))
        try:
            os.killpg(job, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(job, signal.SIGKILL)
        os.waitpid(job, 0)
        more = left_since(before)
        left, before = left | more, before | more
        at_work += len(unread(working[0]))
    for end in working:
        os.close(end)
    print(
        f'mass kills: {kills} of {ranks} ranks over {transport}, {at_work} of them at work: '
        f'{len(left)} files, segments, sockets '
        f'and processes left {sorted(left)[:5]}',
        flush=True,
    )
    return not left and at_work >= kills // 4


def alone(options):
    """Starts this script again in namespaces without processes, files and sockets of others, if the
    system allows that."""
    inside = 'mount -t tmpfs tmpfs /dev/shm && ip link set lo up && exec "$@"'
    words = [
        'unshare',
        '--mount',
        '--net',
        '--ipc',
        '--pid',
        '--fork',
        '--kill-child',
        '--mount-proc',
        'sh',
        '-c',
    ]
    if (
        options.inside
        or subprocess.run(
            [*words, inside, 'sh', 'true'], stderr=subprocess.DEVNULL, check=False
        ).returncode
        != 0
    ):
        return
    os.execvp(
        words[0],
        [
            *words,
            inside,
            'sh',
            sys.executable,
            os.path.abspath(__file__),
            '--inside',
            os.path.abspath(options.library),
            *sys.argv[2:],
        ],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('library')
    parser.add_argument('--minutes', type=float, default=1)
    parser.add_argument('--ranks', type=int, default=4)
    parser.add_argument('--kill-every', type=float, default=2, help='seconds')
    parser.add_argument('--mass-kills', type=int, default=20)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--inside', action='store_true', help=argparse.SUPPRESS)
    options = parser.parse_args()
    transport = os.environ.get('FSCCL_TRANSPORT', 'shm')
    alone(options)
    if not options.inside:
        print('beside other programs: what they leave counts, too', flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ['TMPDIR'] = tempfile.tempdir = folder
        good = sees_what_is_left()
        if not good:
            print('what is left on purpose is not seen', flush=True)
        if options.mass_kills:
            for name in ('shm', 'tcp'):
                good &= mass_kills(
                    options.library, name, options.ranks, options.mass_kills, options.seed
                )
    os.environ['FSCCL_TRANSPORT'] = transport
    if not options.minutes:
        sys.exit(0 if good else 1)
    good = (
        lifetime(
            options.library, options.ranks, options.minutes * 60, options.kill_every, options.seed
        )
        and good
    )
    sys.exit(0 if good else 1)


if __name__ == '__main__':
    main()
