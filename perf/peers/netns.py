#!/usr/bin/env python3
"""Compares FSCCL, Open MPI, Gloo and ucx_perftest over one link between two hosts, which are
network namespaces of this machine.

  netns.sh [--quick] [--rate 1gbit] [--rounds N] [--pin] [--no-limits] [--json FILE]

The libraries take turns in every round, so that other work of the machine disturbs all of them. A
number is the median over the rounds. Every library runs the same sizes, samples and calls per
sample (mpi_peer.c says what a sample is), and checks its results. A peer that is not installed is
left out, and named.

The limits of the link are what ucx_perftest moves with its best operation and message size: one way
for broadcast, both ways at once for all-gather and reduce-scatter, and its latency for few bytes.
All ranks share the cores of one machine, so without --rate "the link" is the kernel's TCP and the
cores that run it.
"""

import argparse
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
HOSTS = 2
COLLECTIVES = ('all_gather', 'reduce_scatter', 'broadcast', 'all_reduce')
# The largest size to which a rule applies, samples, warm-up, and calls in a sample.
RULES = ((16 << 10, 60, 10, 10), (1 << 20, 40, 5, 1), (16 << 20, 15, 3, 1), (256 << 20, 5, 2, 1))
OPERATIONS = {'put': 'ucp_put_bw', 'get': 'ucp_get', 'am': 'ucp_am_bw', 'tag': 'tag_bw'}
MESSAGES = (64 << 10, 1 << 20, 4 << 20)
LATENCIES = ('ucp_am_lat', 'tag_lat')
TIMEOUT_S = 600
MEGABYTE = 1 << 20  # ucx_perftest counts so


def say(text):
    print(f'netns: {text}', file=sys.stderr, flush=True)


def address(host):
    return f'10.119.0.{host + 1}'


def together(commands):
    """Runs all commands at once. Returns what the first one printed, or None, after saying why, if
    one failed."""
    files = [tempfile.TemporaryFile('w+') for _ in commands]
    running = [
        subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        for command, file in zip(commands, files)
    ]
    end, failed = time.monotonic() + TIMEOUT_S, None
    for process in running:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            failed = f'not over after {TIMEOUT_S} s'
        if process.returncode:
            failed = f'exit status {process.returncode}'
            end = min(end, time.monotonic() + 5)
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()
    texts = []
    for file in files:
        file.seek(0)
        texts.append(file.read())
    if failed:
        say(f'{" ".join(commands[0][-6:])}: {failed}:\n' + '\n'.join(text[-600:] for text in texts))
        return None
    return texts[0]


def rows(text):
    """Returns {(collective, bytes): (p10, p50) in us} of the JSON lines."""
    found = {}
    for line in (text or '').splitlines():
        if line.startswith('{'):
            row = json.loads(line)
            found[row['coll'], row['bytes']] = (row['p10_us'], row['p50_us'])
            if row['wrong']:
                say(f'WRONG: {line}')
    return found


def words_of(options):
    return [str(word) for option in options.items() for word in option]


class Peers:
    """The peers that can be run here: `list` has for each name a function of (samples, warm-up,
    calls, sizes)."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.ranks = HOSTS * options.ranks_per_host
        self.port = 20000
        self.list = {}
        self.find_fsccl()
        self.find_mpi()
        self.find_gloo()
        self.perftest = shutil.which('ucx_perftest') if options.limits else None
        if options.limits and not self.perftest:
            say('left out: the limits of the link: no ucx_perftest (package ucx-utils)')

    def cores_of(self, host):
        """Returns the processors of a host if each host is to have its own: one for each rank, or
        the host's share of those that are there."""
        cores = sorted(os.sched_getaffinity(0))
        each = min(self.options.ranks_per_host, max(1, len(cores) // HOSTS))
        first = host * each % len(cores)
        return ','.join(map(str, cores[first : first + each]))

    def pinned(self, host):
        return ['taskset', '-c', self.cores_of(host)] if self.options.pin else []

    def on_host(self, host, command, variables=None):
        """Returns the words that run a command on a host. A real host cannot reach the memory of
        others, so UCX may not use shared memory here either."""
        common = {'UCX_TLS': 'tcp,self', 'UCX_NET_DEVICES': 'eth0', 'GLOO_SOCKET_IFNAME': 'eth0'}
        words = [f'{name}={value}' for name, value in {**common, **(variables or {})}.items()]
        return [
            *self.pinned(host),
            'nsenter',
            f'--net=/run/netns/host{host}',
            'env',
            *words,
            *command,
        ]

    def places(self):
        """Yields the host and the variables of each rank."""
        self.port += 7
        each = self.options.ranks_per_host
        for rank in range(self.ranks):
            yield (
                rank // each,
                {
                    'RANK': rank,
                    'WORLD_SIZE': self.ranks,
                    'LOCAL_RANK': rank % each,
                    'LOCAL_WORLD_SIZE': each,
                    'MASTER_ADDR': address(0),
                    'MASTER_PORT': self.port,
                },
            )

    def find_fsccl(self):
        program = os.path.join(self.options.build, 'perf', 'fsccl-perf')
        if not os.access(program, os.X_OK):
            sys.exit(f'netns: no {program}: build, or give --build')
        secret = os.path.join(self.folder, 'secret')
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), 'wb') as file:
            file.write(os.urandom(32).hex().encode())

        def run_collectives(collectives, in_place, numbers, more):
            command = [
                program,
                'collectives',
                '--json',
                '--coll',
                ','.join(collectives),
                '--in-place',
                in_place,
                '--memory',
                'caller',
                *words_of(numbers),
            ]
            own = {'FSCCL_JOB_SECRET_FILE': secret, **dict(more)}
            return rows(
                together(
                    [
                        self.on_host(
                            host, command, {**place, **own, 'FSCCL_HOST_ID': f'host{host}'}
                        )
                        for host, place in self.places()
                    ]
                )
            )

        def run(samples, warmup, calls, sizes, more=()):
            numbers = {
                '-f': 4,
                '-b': sizes[0],
                '-e': sizes[-1],
                '-n': samples,
                '-w': warmup,
                '-m': calls,
            }
            # MPI_Bcast has one buffer. The other calls of MPI are measured with two.
            others = [name for name in self.options.collectives if name != 'broadcast']
            found = run_collectives(others, 'no', numbers, more) if others else {}
            if len(others) < len(self.options.collectives):
                found.update(run_collectives(['broadcast'], 'yes', numbers, more))
            return found

        self.list['fsccl'] = run
        if self.options.set:
            self.list['fsccl, set'] = functools.partial(
                run, more=[words.split('=', 1) for words in self.options.set]
            )

    def find_mpi(self):
        if not shutil.which('mpicc') or not shutil.which('mpirun'):
            return say('left out: Open MPI: no mpicc or no mpirun')
        program, agent = os.path.join(self.folder, 'mpi_peer'), os.path.join(self.folder, 'agent')
        compiler = ['mpicc', '-O2', '-std=c99', os.path.join(HERE, 'mpi_peer.c'), '-o', program]
        if subprocess.run(compiler, check=False).returncode != 0:
            return say('left out: Open MPI: mpicc compiles nothing (package libopenmpi-dev)')
        # This script takes the place of ssh. Each host gets its own name, by which Open MPI knows
        # that its ranks share no memory with those of other hosts.
        pins = ' '.join(
            f'host{host}) pin="{" ".join(self.pinned(host))}" ;;' for host in range(HOSTS)
        )
        with open(os.open(agent, os.O_WRONLY | os.O_CREAT, 0o755), 'w', encoding='utf-8') as file:
            file.write(
                f'#!/bin/sh\nhost=host$((${{1##*.}} - 1))\nshift\ncase $host in {pins} esac\n'
                'exec $pin nsenter --net=/run/netns/$host unshare --uts --ipc sh -c "hostname '
                '$host; $*"\n'
            )
        hosts = ','.join(f'{address(host)}:{self.options.ranks_per_host}' for host in range(HOSTS))
        common = [
            'mpirun',
            '--allow-run-as-root',
            '-np',
            str(self.ranks),
            '--host',
            hosts,
            '--bind-to',
            'none',
            '-x',
            'UCX_TLS=tcp,self,sm',
            '-x',
            'UCX_NET_DEVICES=eth0',
        ]
        settings = {
            'plm_rsh_agent': agent,
            'btl': '^openib,ofi',
            'btl_tcp_if_include': 'eth0',
            'osc': '^ucx',
        }
        if self.ranks > os.cpu_count():
            settings['mpi_yield_when_idle'] = '1'  # each host takes all cores for its own
        if self.options.ranks_per_host == 1:
            common[common.index('UCX_TLS=tcp,self,sm')] = 'UCX_TLS=tcp,self'  # UCX sees one machine
        ways = {
            'mpi/tcp': {'pml': 'ob1'},
            'mpi/ucx': {'pml': 'ucx', 'pml_ucx_tls': 'any', 'pml_ucx_devices': 'any'},
        }
        for name, way in ways.items():

            def run(samples, warmup, calls, sizes, way=way):
                given = [
                    word
                    for name, value in {**settings, **way}.items()
                    for word in ('--mca', name, value)
                ]
                return rows(
                    together(
                        [
                            [
                                *common,
                                *given,
                                program,
                                ','.join(self.options.collectives),
                                *map(str, (samples, warmup, calls, *sizes)),
                            ]
                        ]
                    )
                )

            self.list[name] = run

    def find_gloo(self):
        python = os.environ.get('PYTHON', 'python3')
        if subprocess.run(
            [python, '-c', 'import torch.distributed'], stderr=subprocess.DEVNULL, check=False
        ).returncode:
            return say(f'left out: Gloo: {python} has no torch ($PYTHON names another)')

        def run(samples, warmup, calls, sizes):
            command = [
                python,
                os.path.join(HERE, 'gloo_peer.py'),
                ','.join(self.options.collectives),
                *map(str, (samples, warmup, calls, *sizes)),
            ]
            return rows(
                together([self.on_host(host, command, place) for host, place in self.places()])
            )

        self.list['gloo'] = run

    def perftests(self, test, size, iterations, directions=1):
        """Returns megabytes/s of each direction, or microseconds for a test of latency. The
        directions run at once."""
        self.port += 7
        servers, clients = [], []
        for way in range(directions):
            words = [self.perftest, '-p', str(self.port + way)]
            servers.append(
                subprocess.Popen(
                    self.on_host(1 - way, words),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        time.sleep(0.3)
        for way in range(directions):
            given = {
                '-p': self.port + way,
                '-t': test,
                '-s': size,
                '-n': iterations,
                '-w': max(10, iterations // 20),
            }
            words = self.on_host(
                way, [self.perftest, address(1 - way), '-f', '-v', *words_of(given)]
            )
            clients.append(
                subprocess.Popen(
                    words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            )
        results = []
        for client in clients:
            try:
                text = client.communicate(timeout=60)[0].strip().splitlines()
            except subprocess.TimeoutExpired:
                client.kill()
                text = []
            numbers = text[-1].split(',') if text else []
            results.append(
                float(numbers[2 if test in LATENCIES else 5]) if len(numbers) >= 6 else None
            )
        for server in servers:
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        return results

    def limits(self):
        """Measures the link, by operation and size: megabytes/s one way, those of each of both ways
        at once, and microseconds for few bytes."""
        one, both = {}, {}
        cases = {
            f'{name} {size >> 10}K': (test, size)
            for name, test in OPERATIONS.items()
            for size in MESSAGES
        }
        for key, (test, size) in cases.items():
            one[key] = self.perftests(
                test, size, (16 << 20 if self.options.rate else 512 << 20) // size
            )[0]
        # These runs are long, so that it does not matter that the two directions do not start at
        # once.
        for key in sorted(cases, key=lambda key: one[key] or 0)[-4:]:
            test, size = cases[key]
            ways = self.perftests(
                test, size, (128 << 20 if self.options.rate else 4 << 30) // size, 2
            )
            both[key] = min(ways) if None not in ways else None
        latency = {test: self.perftests(test, 32, 3000)[0] for test in LATENCIES}
        return {'one way': one, 'both ways': both, 'latency': latency}


def measure(options, folder):
    peers = Peers(options, folder)
    sizes = [1 << shift for shift in range(6, 29, 2) if 1 << shift <= options.most]
    if options.quick:
        sizes = [
            size for size in sizes if size in (64, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20)
        ]
    if options.sizes:
        sizes = sorted(options.sizes)
    results, limits = [], []
    for turn in range(options.rounds):
        found = {name: {} for name in peers.list}
        least = 0
        for most, samples, warmup, calls in RULES:
            group = [size for size in sizes if least < size <= most]
            least = most
            if options.quick or options.rate:
                samples = max(5, samples // 2)
            for name, run in peers.list.items():
                runs = [group] if group and not name.startswith('fsccl') else fsccl_groups(group)
                for part in runs:
                    say(
                        f'round {turn + 1} of {options.rounds}: {name}, {part[0]} to {part[-1]} '
                        f'bytes'
                    )
                    found[name].update(run(samples, warmup, calls, part))
        results.append(found)
        if peers.perftest:
            say(f'round {turn + 1} of {options.rounds}: ucx_perftest')
            limits.append(peers.limits())
    return sizes, results, limits


def fsccl_groups(group):
    """Returns runs of sizes, each of which is 4 times the one before, as -f can say."""
    runs = []
    for size in group:
        if runs and size == runs[-1][-1] * 4:
            runs[-1].append(size)
        else:
            runs.append([size])
    return runs


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def best(limits, what, choose):
    """Returns (value, name) of the kind of ucx_perftest whose median is best."""
    names = {name for turn in limits for name in turn[what]}
    values = [
        (value, name)
        for name in names
        if (value := median([turn[what].get(name) for turn in limits])) is not None
    ]
    return choose(values) if values else (None, '')


def line_rate(rate):
    """Returns the payload of a shaped link in bytes/us: a packet of 1514 bytes, as tc counts, has
    1448 bytes of it."""
    units = {'kbit': 1e3, 'mbit': 1e6, 'gbit': 1e9}
    for unit, factor in units.items():
        if rate.endswith(unit):
            return float(rate[: -len(unit)]) * factor / 8e6 * 1448 / 1514
    return None


# The bytes that the link carries each way between two hosts, as shares of the size, if as few as
# possible are sent.
CARRIED = {'broadcast': 1, 'all_gather': 0.5, 'reduce_scatter': 0.5, 'all_reduce': 1}


def table(options, sizes, results, limits):
    one, one_name = best(limits, 'one way', max)
    both, both_name = best(limits, 'both ways', max)
    latency, latency_name = best(limits, 'latency', min)
    if limits:
        print(
            f'# ucx_perftest: one way {one:.0f} MiB/s ({one_name}), each of both ways {both:.0f} '
            f'MiB/s ({both_name}), latency '
            f'{latency:.1f} us ({latency_name}); medians of {len(limits)} rounds'
        )
    names = list(results[0])
    others = [name for name in names if not name.startswith('fsccl')]
    print(
        '# p10/p50 in us. best/ours: of p10 (p50), above 1 FSCCL is ahead. limit/ours: of p50, '
        'what the link needs.'
    )
    print(
        f'{"collective":<15}{"bytes":>10}'
        + ''.join(f'{name:>21}' for name in names)
        + f'{"best":>9}{"best/ours":>14}{"limit/ours":>11}'
    )
    records = []
    for collective in options.collectives:
        for size in sizes:
            times = {}
            for name in names:
                got = [turn[name].get((collective, size)) for turn in results]
                times[name] = tuple(median([value[i] for value in got if value]) for i in range(2))
            ours = times['fsccl']
            line = f'{collective:<15}{size:>10}'
            for name in names:
                p10, p50 = times[name]
                line += f'{f"{p10:.1f}/{p50:.1f}" if p10 else "-":>21}'
            rivals = [name for name in others if times[name][0]]
            ahead = ['-', '-']
            best_name = min(rivals, key=lambda name: times[name][0]) if rivals else '-'
            if rivals and ours[0]:
                ahead = [min(times[name][i] for name in rivals) / ours[i] for i in range(2)]
            share = None
            speed = one if collective == 'broadcast' else both
            if options.rate and line_rate(options.rate):
                speed = line_rate(options.rate) * 1e6 / MEGABYTE
            if ours[1] and speed and size >= MEGABYTE:
                share = size * CARRIED[collective] / (speed * MEGABYTE / 1e6) / ours[1]
            elif ours[1] and latency and size <= 64:
                share = latency / ours[1]
            shown = f'{ahead[0]:.2f} ({ahead[1]:.2f})' if rivals and ours[0] else '-'
            print(
                line + f'{best_name:>9}{shown:>14}' + (f'{share:>11.2f}' if share else f'{"":>11}')
            )
            records.append(
                {
                    'collective': collective,
                    'bytes': size,
                    'times_us': times,
                    'best': best_name,
                    'ahead': ahead,
                    'of_limit': share,
                    'rounds_p10_us': {
                        name: [turn[name].get((collective, size), (None,))[0] for turn in results]
                        for name in names
                    },
                }
            )
    if options.rate and line_rate(options.rate):
        print(
            f'# limit: the line rate, {line_rate(options.rate):.1f} bytes/us of payload; of 64 '
            f'bytes the latency'
        )
    return records


def goals(options, records):
    """Prints each goal of FSCCL, and whether it is reached."""
    missed = 0

    def judge(text, chosen, least):
        nonlocal missed
        chosen = [(row, value) for row, value in chosen if value is not None]
        if not chosen:
            return
        bad = [
            f'{row["collective"]} {row["bytes"]}: {value:.2f}'
            for row, value in chosen
            if value < least
        ]
        missed += len(bad)
        print(
            f'{"MISSED" if bad else "met   "}  {text} (at least {least})'
            + (': ' + ', '.join(bad) if bad else '')
        )

    large = [row for row in records if row['bytes'] >= 4 << 20]
    if options.rate:
        judge('share of line rate from 4 MiB', [(row, row['of_limit']) for row in large], 0.95)
    else:
        judge(
            'broadcast from 4 MiB, of ucx_perftest one way',
            [(row, row['of_limit']) for row in large if row['collective'] == 'broadcast'],
            0.9,
        )
        judge(
            'all-gather and reduce-scatter from 4 MiB, of ucx_perftest both ways',
            [
                (row, row['of_limit'])
                for row in large
                if row['collective'] in ('all_gather', 'reduce_scatter')
            ],
            0.9,
        )
    judge(
        'all-gather of 64 bytes, of the latency',
        [
            (row, row['of_limit'])
            for row in records
            if row['bytes'] == 64 and row['collective'] == 'all_gather'
        ],
        0.67,
    )
    for prefix, name, least in (('mpi', 'Open MPI', 0.95), ('gloo', 'Gloo', 1.0)):
        chosen = []
        for row in records:
            others = [
                times[0]
                for peer, times in row['times_us'].items()
                if peer.startswith(prefix) and times[0]
            ]
            if others and row['times_us']['fsccl'][0]:
                chosen.append((row, min(others) / row['times_us']['fsccl'][0]))
        if chosen:
            judge(f'beside {name}, at every size', chosen, least)
    return missed


def names(text):
    chosen = [name for name in COLLECTIVES if name in text.split(',')]
    if len(chosen) != len(text.split(',')):
        raise argparse.ArgumentTypeError(f'collectives are {", ".join(COLLECTIVES)}')
    return chosen


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--build', default=os.path.join(ROOT, 'build'), help='folder of the build (build)'
    )
    parser.add_argument('--rate', help='of the link in both directions, as tc has it: 1gbit')
    parser.add_argument('--quick', action='store_true', help='fewer sizes, up to 16 MiB')
    parser.add_argument(
        '--collectives', type=names, default=COLLECTIVES, help='only these, separated by commas'
    )
    parser.add_argument(
        '--sizes',
        type=lambda text: [int(size) for size in text.split(',')],
        help='in bytes, separated by commas',
    )
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--ranks-per-host', type=int, default=1)
    parser.add_argument(
        '--pin',
        action='store_true',
        help='each host to processors of its own: of two ranks, neither moves',
    )
    parser.add_argument(
        '--set',
        action='append',
        metavar='NAME=VALUE',
        help='a variable for a second run of FSCCL in each turn',
    )
    parser.add_argument(
        '--tcp', default='cubic', help="the kernel's congestion control between the hosts (cubic)"
    )
    parser.add_argument(
        '--no-limits',
        dest='limits',
        action='store_false',
        help='without ucx_perftest, which takes longest',
    )
    parser.add_argument('--json', help='file for the results')
    options = parser.parse_args()
    options.most = 16 << 20 if options.quick else 256 << 20
    options.build = os.path.abspath(options.build)
    if 'TEST_HOSTS' not in os.environ:
        words = [
            sys.executable,
            os.path.join(ROOT, 'tests', 'hosts', 'hosts.py'),
            '--hosts',
            str(HOSTS),
        ]
        os.execv(
            sys.executable,
            [
                *words,
                *(['--rate', options.rate] if options.rate else []),
                '--',
                sys.executable,
                *sys.argv,
            ],
        )
    if '/' not in os.environ['TEST_HOSTS']:
        sys.exit('netns: this kernel, or this user, may not make network namespaces')
    subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)
    subprocess.run(
        ['ip', 'addr', 'add', '10.119.0.254/24', 'dev', 'between'], check=True
    )  # mpirun has this address
    for host in range(HOSTS):
        subprocess.run(
            [
                'ip',
                '-n',
                f'host{host}',
                'route',
                'change',
                '10.119.0.0/24',
                'dev',
                'eth0',
                'congctl',
                options.tcp,
                'src',
                address(host),
            ],
            check=True,
        )
    with tempfile.TemporaryDirectory() as folder:
        sizes, results, limits = measure(options, folder)
    records = table(options, sizes, results, limits)
    missed = goals(options, records)
    if options.json:
        with open(options.json, 'w', encoding='utf-8') as file:
            found = {
                'rate': options.rate,
                'tcp': options.tcp,
                'rounds': options.rounds,
                'records': records,
                'limits': limits,
            }
            json.dump(found, file, indent=1)
    return 1 if missed else 0


if __name__ == '__main__':
    sys.exit(main())
