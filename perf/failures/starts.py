#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests starts of jobs under attack, under small limits, with forks and with signals.

  starts.py --library build/libfsccl.so.0 [forged] [fire] [limits] [fork] [signals]

Without a name all of these run:

forged:  three ranks meet over TCP with a secret. The second one comes through a proxy that records
         its handshake. Then --forged (100000) handshakes with forged, replayed, reflected and
         downgraded proofs are tried, and the third rank comes. No handshake may get further than
         the first message, and the job must gather the right ranks.
fire:    --starts (100) jobs of 16 ranks run in peace and as many under fire, in turn: random bytes,
         half messages, lengths of 2^32 and 500 connections that say nothing, at the TCP port and at
         each Unix socket of the ranks. The last rank comes when all of these are there, and the
         time from then on counts.
limits:  64 descriptors; no locked memory; 1 GiB of addresses; /dev/shm of 1 MiB (if this cannot be
         tried, the test has not passed). Two ranks gather, or an error names the limit.
fork:    after the start a rank forks 1,000 children, each of which calls the library and gets
         FSCCL_ERR_FORKED, and the parent goes on. No descriptor survives exec, and no handler of a
         signal was set.
signals: 10,000 signals a second go to each of four ranks, from before they join, while they gather
         for --seconds (10).

The exit status is 0 if everything is as it must be, including the rates and times of `fire` and
`signals` unless --no-goals is given.
"""

import argparse
import binascii
import os
import random
import resource
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from ranks import Job, c, free_port, load, say, show

HELLO, CHALLENGE, PROOF, FAILURE, REGISTER = 1, 2, 3, 4, 10
HEADER = struct.Struct('<IHHI')
MAGIC = 0x4C435346
HELLO_BYTES, PROOF_BYTES = 56, 32
MODE_AT, PURPOSE_AT, NONCE_AT = 6, 7, 24  # their places in a Hello
IDLE = 500
KNOCKS = struct.Struct('QQQ')
ALARMS_A_SECOND = (
    9000  # fewer than 10,000, because Python's handlers miss some that come while one runs
)


def frame(kind, payload):
    total = binascii.crc_hqx(struct.pack('<HI', kind, len(payload)) + payload, 0xFFFF)
    return HEADER.pack(MAGIC, kind, total, len(payload)) + payload


def read_frame(connection):
    """Returns (type, payload), or None if the other side has closed."""

    def exactly(count):
        data = b''
        while len(data) < count:
            try:
                piece = connection.recv(count - len(data))
            except ConnectionError:
                return None
            if not piece:
                return None
            data += piece
        return data

    header = exactly(HEADER.size)
    if header is None:
        return None
    _, kind, _, count = HEADER.unpack(header)
    payload = exactly(count)
    return None if payload is None else (kind, payload)


class Proxy(threading.Thread):
    """A proxy between one rank and the port. It keeps the messages of the handshake and the one
    that follows, which is the request of the rank."""

    def __init__(self, door):
        super().__init__(daemon=True)
        self.door, self.listener, self.recorded = door, socket.create_server(('127.0.0.1', 0)), []
        self.port = self.listener.getsockname()[1]

    def run(self):
        rank = self.listener.accept()[0]
        door = connect(self.door)
        for source, target in ((rank, door), (door, rank), (rank, door), (rank, door)):
            kind, payload = read_frame(source)
            self.recorded.append(payload)
            target.sendall(frame(kind, payload))
        while True:
            for source in select.select([rank, door], [], [])[0]:
                data = source.recv(65536)
                if not data:
                    return
                (door if source is rank else rank).sendall(data)


def connect(port):
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(('127.0.0.1', port), timeout=30)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def forge(port, number, recorded):
    """Makes one attempt. Returns true if the request after the proof was answered. (If it were
    granted, the job would also end, because a rank would have joined twice.)"""
    hello, challenge, proof, request = recorded
    ways = [
        'random',
        'replayed',
        'reflected',
        'as a user',
        'as anybody',
        'another purpose',
        'zero',
        'nearly replayed',
    ]
    way = ways[number % len(ways)]
    hello = bytearray(hello)
    if way not in ('replayed', 'nearly replayed'):
        hello[NONCE_AT:] = secrets.token_bytes(len(hello) - NONCE_AT)
    if way in ('as a user', 'as anybody'):
        hello[MODE_AT] = 2 if way == 'as a user' else 3
    if way == 'another purpose':
        hello[PURPOSE_AT] = 1 + number // len(ways) % 5
    with connect(port) as connection:
        try:
            connection.sendall(frame(HELLO, bytes(hello)))
            answer = read_frame(connection)
            given = answer[1] if answer and answer[0] == CHALLENGE else challenge
            bits = bytearray(proof)
            bits[number % PROOF_BYTES] ^= 1 << number % 8
            said = {
                'reflected': given[-PROOF_BYTES:],
                'replayed': proof,
                'zero': bytes(PROOF_BYTES),
                'nearly replayed': bytes(bits),
            }
            connection.sendall(
                frame(PROOF, said.get(way) or secrets.token_bytes(PROOF_BYTES))
                + frame(REGISTER, request)
            )
            while answer := read_frame(connection):
                if answer[0] != FAILURE:
                    return True
        except ConnectionError:
            pass
    return False


def gathers(rank, _):
    found = rank.gather(rank.comm, rank.rank, rank.ranks)
    if found != list(range(rank.ranks)):
        raise SystemExit(f'rank {rank.rank}: gathered {found}')
    say('gathered', time.monotonic_ns())


def forged(options):
    with tempfile.NamedTemporaryFile(prefix='secret') as secret:
        secret.write(secrets.token_hex(32).encode())
        secret.flush()
        port = free_port()
        proxy = Proxy(port)
        proxy.start()

        def settings(rank):
            return {
                'FSCCL_HOST_ID': f'host {rank}',
                'FSCCL_JOB_SECRET_FILE': secret.name,
                'LOCAL_RANK': '0',
                'LOCAL_WORLD_SIZE': '1',
                'FSCCL_BOOTSTRAP_PORT': str(proxy.port if rank == 1 else port),
                'FSCCL_TIMEOUT_MS': '3600000',
            }

        job = Job(options, 3, gathers, None, settings, held=2)
        deadline = time.monotonic() + 30
        while len(proxy.recorded) < 4:
            if time.monotonic() > deadline:
                raise SystemExit('no handshake came by the proxy')
            time.sleep(0.005)
        begin = time.monotonic()
        accepted = sum(forge(port, number, proxy.recorded) for number in range(options.forged))
        took = time.monotonic() - begin
        job.release()
        job.expect('gathered')
        job.end()
    print(
        f'forged: {options.forged} handshakes in {took:.0f} s, {accepted} accepted; the job '
        f'gathered all its ranks',
        flush=True,
    )
    return accepted == 0


def doors(port):
    """Returns where ranks of any job listen: the TCP door and the library's Unix sockets."""
    with open('/proc/net/unix', encoding='ascii', errors='replace') as file:
        names = {line.split()[-1] for line in file if ' @fsccl' in line}
    return [port] + [name.replace('@', '\0', 1) for name in sorted(names)]


def knock(door):
    made = socket.socket(socket.AF_INET if isinstance(door, int) else socket.AF_UNIX)
    made.setblocking(False)
    try:
        made.connect(('127.0.0.1', door) if isinstance(door, int) else door)
    except BlockingIOError:
        pass
    except OSError:
        made.close()
        return None
    return made


def attack(port, stop, told):
    """Attacks, in its own process, until `stop` can be read. Once all wanted connections are there,
    and again at the end, it reports how many connections it holds that said nothing, how many said
    something, and how many of the latter it still holds."""
    chance, silent, spoken = random.Random(port), [], []
    said = [
        lambda: chance.randbytes(100),
        lambda: HEADER.pack(MAGIC, HELLO, 0, 0xFFFFFFFF),
        lambda: frame(HELLO, bytes(HELLO_BYTES))[:7],
        lambda: frame(HELLO, bytes(HELLO_BYTES)),
    ]
    number = spoke = 0
    waited_for = True
    while not select.select([stop], [], [], 0)[0]:
        for door in doors(port):
            number += 1
            made = knock(door)
            if not made:
                continue
            if len(silent) < IDLE and number % 2:
                silent.append(made)
                continue
            try:
                made.send(said[number // 2 % 4]())
                spoke += 1
            except OSError:
                pass
            spoken.append(made)
            if len(spoken) > IDLE:
                spoken.pop(0).close()
        if waited_for and len(silent) == IDLE and spoke >= IDLE:
            os.write(told, KNOCKS.pack(len(silent), spoke, len(spoken)))
            waited_for = False
    os.write(told, KNOCKS.pack(len(silent), spoke, len(spoken)))


def start_once(options, under_fire):
    """Returns the time from the moment when the last rank may begin, which is when all attacking
    connections are there, until all ranks have gathered; and the numbers of those connections."""
    port = free_port()
    if under_fire:
        stop, told = os.pipe(), os.pipe()
        attacker = os.fork()
        if attacker == 0:
            os.close(stop[1])
            attack(port, stop[0], told[1])
            os._exit(0)
        os.close(told[1])

    def settings(rank):
        return {
            'FSCCL_BOOTSTRAP_PORT': str(port),
            'FSCCL_INSECURE': '1',
            'FSCCL_HOST_ID': f'host {rank // 8}',
        }

    job = Job(options, 16, gathers, None, settings, held=15)
    knocks = (0, 0, 0)
    if not under_fire:
        time.sleep(1)  # the others have come by then
    elif select.select([told[0]], [], [], 60)[0]:
        knocks = KNOCKS.unpack(os.read(told[0], KNOCKS.size))
    begin = time.monotonic_ns()
    job.release()
    took = max(job.expect('gathered')) - begin
    if under_fire:
        os.close(stop[0])
        os.close(stop[1])
        os.waitpid(attacker, 0)
        os.close(told[0])
    job.end()
    return took, knocks


def fire(options):
    times, knocks = {False: [], True: []}, []
    for _ in range(options.starts):
        for under_fire, took in times.items():
            took_ns, knocked = start_once(options, under_fire)
            took.append(took_ns)
            if under_fire:
                knocks.append(knocked)
    show('the last of 16 ranks comes, in peace', times[False])
    show('the last of 16 ranks comes, under fire', times[True])
    more = (
        sorted(times[True])[options.starts // 2] - sorted(times[False])[options.starts // 2]
    ) / 1e6
    silent, spoke, open_ones = (min(numbers) for numbers in zip(*knocks))
    print(
        f'fire: {options.starts} of {options.starts} starts, {more:+.0f} ms in the median; before '
        f'the last rank came, at least '
        f'{silent} connections were there that said nothing and {open_ones} others, of {spoke} '
        f'that said something',
        flush=True,
    )
    return silent == IDLE and spoke >= IDLE and (options.no_goals or more <= 100)


def limited(options, name, limit, words):
    """Returns true if two ranks gather under the limit, or are refused by an error that has one of
    these words."""
    with tempfile.NamedTemporaryFile('r') as said:

        def settings(_):
            os.dup2(os.open(said.name, os.O_WRONLY | os.O_APPEND), 2)
            limit()
            return {}

        job = Job(options, 2, gathers, None, settings)
        try:
            job.expect('gathered')
            print(f'limits: {name}: works', flush=True)
            return True
        except SystemExit as error:
            text = said.read().strip()
            named = 'ended before' in str(error) and any(word in text for word in words)
            print(
                f'limits: {name}: {"refused" if named else "NOT NAMED"}: {error}: {text}',
                flush=True,
            )
            return named
        finally:
            job.end()


def limits(options):
    if os.environ.get('SMALL_SHM'):
        return limited(options, '/dev/shm of 1 MiB', lambda: None, ['/dev/shm'])
    good = limited(
        options,
        '64 descriptors',
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
        ['ulimit -n'],
    )
    good &= limited(
        options,
        'no locked memory',
        lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0)),
        ['ulimit -l'],
    )
    good &= limited(
        options,
        '1 GiB of addresses',
        lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)),
        ['ulimit -v'],
    )
    command = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    again = [sys.executable, os.path.abspath(__file__), '--library', options.library, 'limits']
    small = subprocess.run(
        ['unshare', '-m', 'sh', '-c', command, 'sh', *again],
        env={**os.environ, 'SMALL_SHM': '1'},
        check=False,
        capture_output=True,
        text=True,
    )
    tried = 'limits:' in small.stdout
    print(
        small.stdout.strip()
        if tried
        else f'limits: /dev/shm of 1 MiB: NOT TRIED: {small.stderr.strip()}',
        flush=True,
    )
    return good and (small.returncode == 0 or (options.no_goals and not tried))


def caught_signals(process):
    """Returns the caught signals as bits, without the two that the C library uses for its
    threads."""
    with open(f'/proc/{process}/status', encoding='ascii') as file:
        return int(next(line.split()[1] for line in file if line.startswith('SigCgt')), 16) & ~(
            3 << 31
        )


def forks(rank, count):
    gathers(rank, None)
    if rank.rank == 0:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                os._exit(0 if rank.barrier(rank.comm) == c.ERR_FORKED else 1)
            if os.waitpid(child, 0)[1] != 0:
                raise SystemExit('a child was not told that it is one')
        kept = [name for name in os.listdir('/proc/self/fd') if not closes_on_exec(name)]
        if [name for name in kept if int(name) > 2]:
            raise SystemExit(f'descriptors {kept} survive exec')
    gathers(rank, None)


def closes_on_exec(name):
    try:
        with open(f'/proc/self/fdinfo/{name}', encoding='ascii') as file:
            flags = next(int(line.split()[1], 8) for line in file if line.startswith('flags'))
        return bool(flags & os.O_CLOEXEC)
    except FileNotFoundError:
        return True


def fork(options):
    before = caught_signals(os.getpid())
    job = Job(options, 2, forks, 1000)
    job.expect('gathered', 2)
    after = caught_signals(job.processes[0])
    job.end()
    print(
        f'fork: 1000 children were told, the parent went on; signals handled before {before:x}, '
        f'after {after:x}',
        flush=True,
    )
    return before == after


ALARMS = [0]  # the number of signals that came to this rank


def count_alarm(*_):
    ALARMS[0] += 1


def begin_alarms(_):
    """Runs in a rank before it joins."""
    signal.signal(signal.SIGALRM, count_alarm)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    return {}


def under_signals(rank, seconds):
    ALARMS[0] = 0
    rounds, end = 0, time.monotonic() + seconds
    go_on = True
    while go_on:
        mine = int(time.monotonic() < end)
        found = rank.gather(rank.comm, rank.rank * 2 + mine, rank.ranks)
        if [value // 2 for value in found] != list(range(rank.ranks)):
            raise SystemExit(f'rank {rank.rank}: gathered {found}')
        go_on = all(value % 2 for value in found)
        rounds += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    say('rounds', rounds)
    say('signals', ALARMS[0])


def signals(options):
    job = Job(options, 4, under_signals, options.seconds, begin_alarms)
    rounds, counts = job.expect('rounds'), job.expect('signals')
    job.end()
    print(
        f'signals: {min(rounds)} gathers of 4 ranks while each got {min(counts)} signals or more '
        f'in {options.seconds} s: right',
        flush=True,
    )
    return options.no_goals or min(counts) >= ALARMS_A_SECOND * options.seconds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--library', required=True)
    parser.add_argument('--forged', type=int, default=100_000)
    parser.add_argument('--starts', type=int, default=100)
    parser.add_argument('--seconds', type=float, default=10)
    parser.add_argument(
        '--no-goals',
        action='store_true',
        help='print times and rates, and what cannot be tried here, but do not judge them',
    )
    parser.add_argument(
        'what', nargs='*', choices=['forged', 'fire', 'limits', 'fork', 'signals', []]
    )
    options = parser.parse_args()
    options.hosts = 1
    load(options.library)  # so that an error comes here, not in every rank
    wanted = options.what or ['forged', 'fire', 'limits', 'fork', 'signals']
    good = [globals()[name](options) for name in wanted]
    sys.exit(0 if all(good) else 1)


if __name__ == '__main__':
    main()
