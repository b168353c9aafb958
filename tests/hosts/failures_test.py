#!/usr/bin/env python3
"""Tests failures between hosts, and the errors that the user of each rank sees:

hosts.py --hosts 2 -- failures_test.py fsccl-perf library-of-another-version DEATHS
"""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time

import ranks

PER_HOST = 2
SUSPECT_S = 0.4
NETWORK = os.environ.get('FSCCL_NETWORK', 'tcp')
FOREVER = [
    'collectives',
    '--coll',
    'all_reduce',
    '-b',
    '1M',
    '-e',
    '1M',
    '-n',
    '1000000',
    '-w',
    '0',
    '-m',
    '1',
    '-c',
    '0',
    '--in-place',
    'yes',
]
failed = 0


def expect(name, results, words, but=None):
    """Expects that every rank has failed, and that each has printed all of the words."""
    global failed
    for rank, (status, _, errors) in enumerate(results):
        if rank == but or (status == 1 and all(word in errors for word in words)):
            continue
        failed += 1
        print(f'{name}: rank {rank} ended with {status}: {errors}')
    print(f'{name}: done')


def running(processes):
    """Waits until the first operations are complete, which rank 0 prints."""
    for line in processes[0].stdout:
        if 'redop' in line:
            return


def endpoint(state):
    """Sets the network interface of the second host to "up" or "down"."""
    subprocess.run(['ip', '-n', 'host1', 'link', 'set', 'eth0', state], check=True)


def lose_connections():
    """Drops packets that arrive at the second host, except datagrams. Returns whether this kernel
    can do that."""
    # Byte 23 is the protocol, 6 is TCP, and 2 is TC_ACT_SHOT.
    tcp = '4,48 0 0 23,21 0 1 6,6 0 0 2,6 0 0 4294967295'
    for words in (
        'qdisc add dev eth0 clsact'.split(),
        [*'filter add dev eth0 ingress bpf direct-action bytecode'.split(), tcp],
    ):
        done = subprocess.run(
            ['tc', '-n', 'host1', *words], check=False, capture_output=True, text=True
        )
        if done.returncode:
            print(
                f'lost connections are not tried, this kernel drops no packets for tc: '
                f'{done.stderr}'
            )
            return False
    return True


def datagrams_alone(perf):
    """Heartbeats arrive as datagrams while connections wait for lost packets, so no rank is a
    suspect."""
    global failed
    processes = ranks.start([perf, *FOREVER], PER_HOST, {'FSCCL_LOG_LEVEL': 'warn'})
    running(processes)
    if lose_connections():
        time.sleep(3 * SUSPECT_S)  # the test is that nothing is said in this time
    for process in processes:
        process.kill()
    for rank, (_, _, errors) in enumerate(ranks.ends(processes)):
        if 'suspect' in errors:
            failed += 1
            print(f'datagrams alone: rank {rank} says {errors}')
    subprocess.run(['tc', '-n', 'host1', 'qdisc', 'del', 'dev', 'eth0', 'clsact'], check=False)
    print('datagrams alone: done')


def choices(perf, once, last):
    """Tests the errors if rules and tuning files of ranks differ, are malformed, or cannot be
    followed."""
    expect(
        'a plan that only one rank wants',
        once(of_last={'FSCCL_PLAN': 'all_gather=flat'}),
        ['FSCCL_ERR_MISMATCH', 'FSCCL_PLAN'],
    )
    results = once(of_last={'FSCCL_PLAN': 'all_gather=ring'})
    expect(
        'a plan that there is not',
        results[:last],
        ['FSCCL_ERR_CONFIG', f'rank {last} cannot use its FSCCL_PLAN'],
    )
    expect(
        'a plan that there is not, where it is set',
        results[last:],
        ['FSCCL_ERR_CONFIG', '"ring" is not one of slots'],
    )
    with tempfile.TemporaryDirectory() as folder:
        one, other, malformed = (f'{folder}/{name}.json' for name in ('one', 'other', 'malformed'))
        for name, rules in ((one, '["all_gather=flat"]'), (other, '[]'), (malformed, '[')):
            with open(name, 'w', encoding='ascii') as file:
                file.write(f'{{"fsccl_tuning": 1, "rules": {rules}}}')
        for what in (other, ''):
            expect(
                f'the tuning file of one rank is {os.path.basename(what) or "none"}',
                once({'FSCCL_TUNING_FILE': one}, {'FSCCL_TUNING_FILE': what}),
                ['FSCCL_ERR_MISMATCH', 'FSCCL_TUNING_FILE', 'same content'],
            )
        results = once({'FSCCL_TUNING_FILE': one}, {'FSCCL_TUNING_FILE': malformed})
        expect(
            'a malformed tuning file',
            results[:last],
            ['FSCCL_ERR_CONFIG', f'rank {last} cannot use'],
        )
        expect(
            'a malformed tuning file, where it is',
            results[last:],
            ['FSCCL_ERR_CONFIG', 'malformed.json: not JSON'],
        )
    larger = [perf, 'collectives', '--coll', 'all_gather', '-b', '64K', '-e', '64K', '-n', '1']
    results = ranks.ends(ranks.start(larger, PER_HOST, {'FSCCL_PLAN': 'all_gather=direct'}))
    said = [
        errors.count('FSCCL_PLAN is not followed for all_gather: these ranks share no memory')
        for _, _, errors in results
    ]
    if said != [1] * len(results) or any(status for status, _, _ in results):
        sys.exit(f'a plan that cannot be followed: {said}, {results}')


def without_ucx(once, folder, first_here, last):
    """One rank's libucp.so.0 cannot be loaded. If UCX was asked for, all ranks end with an error,
    and otherwise none does."""
    with open(f'{folder}/libucp.so.0', 'w', encoding='ascii') as library:
        library.write('no library')
    no_ucx = ['FSCCL_ERR_NOT_AVAILABLE', f'rank {last} cannot use the ucx transport', 'libucx0']
    for name in 'FSCCL_NETWORK', 'FSCCL_TRANSPORT':
        expect(
            f'a rank without UCX that is told to use it by {name}',
            once({name: 'ucx'}, of_last=first_here),
            no_ucx,
        )
    results = once({'FSCCL_NETWORK': 'auto'}, of_last=first_here)
    if any(status for status, _, _ in results):
        sys.exit(f'a rank without UCX: {results}')


def main():
    perf, other_version, deaths = sys.argv[1:]
    last = PER_HOST * len(ranks.hosts()) - 1
    patience = {'FSCCL_TIMEOUT_MS': '5000'}

    def once(variables=None, of_last=None):
        command = [perf, 'collectives', '-b', '64', '-e', '64', '-n', '1']
        return ranks.ends(
            ranks.start(
                command, PER_HOST, variables, lambda rank: of_last if rank == last else None
            )
        )

    for victim in itertools.islice(itertools.cycle((last, 0, last, 1, last)), int(deaths)):
        processes = ranks.start([perf, *FOREVER], PER_HOST)
        running(processes)
        processes[victim].kill()
        expect(
            'a killed rank',
            ranks.ends(processes),
            ['FSCCL_ERR_PEER_DEAD', f'rank {victim} '],
            but=victim,
        )

    if ranks.real():
        datagrams_alone(perf)
        late = [
            'FSCCL_ERR_TIMEOUT',
            'still waits for rank(s) ',
            'cannot be reached',
            'FSCCL_TIMEOUT_MS',
        ]
        lost = ['FSCCL_ERR_PEER_DEAD', ' is dead: ']
        for name, lost_ms, words in (
            ('a link that is down', '0', late),
            ('a link that is down, with heartbeats', '1500', lost),
        ):
            processes = ranks.start(
                [perf, *FOREVER], PER_HOST, {**patience, 'FSCCL_HOST_LOST_MS': lost_ms}
            )
            running(processes)
            subprocess.run(['ip', 'link', 'set', 'port1', 'down'], check=True)
            expect(name, ranks.ends(processes), words)
            subprocess.run(['ip', 'link', 'set', 'port1', 'up'], check=True)

        processes = ranks.start([perf, *FOREVER], PER_HOST, patience)
        running(processes)
        processes[last].send_signal(signal.SIGSTOP)  # its system still acknowledges packets
        results = ranks.ends(processes[:last])
        processes[last].kill()
        expect(
            'a stopped rank of another host',
            results,
            ['FSCCL_ERR_TIMEOUT', f'rank {last} ', 'is a suspect'],
        )

        processes = ranks.start([perf, *FOREVER], PER_HOST, patience)
        running(processes)
        endpoint('down')
        expect('a network card that is down', ranks.ends(processes), lost)

        results = once(patience)
        expect(
            'a host that cannot be reached, where the ranks meet',
            results[:PER_HOST],
            ['FSCCL_ERR_TIMEOUT', 'missing: 2, 3', 'network', 'FSCCL_TIMEOUT_MS'],
        )
        expect(
            'a host that cannot be reached, there',
            results[PER_HOST:],
            ['FSCCL_ERR_TIMEOUT', 'is rank 0 at MASTER_ADDR=10.119.0.1', 'Network is unreachable'],
        )
        endpoint('up')

    expect(
        'a transport that only one rank wants',
        once(of_last={'FSCCL_TRANSPORT': 'ucx'}),
        ['FSCCL_ERR_MISMATCH', 'FSCCL_TRANSPORT'],
    )
    expect(
        'a network that only one rank wants',
        once({'FSCCL_NETWORK': 'auto'}, {'FSCCL_NETWORK': 'ucx'}),
        ['FSCCL_ERR_MISMATCH', 'FSCCL_NETWORK'],
    )
    expect(
        'a transport that there is not',
        once({'FSCCL_TRANSPORT': 'nonsense'}),
        ['FSCCL_ERR_CONFIG', 'FSCCL_TRANSPORT', 'nonsense', 'auto'],
    )
    expect(
        'shared memory between hosts',
        once({'FSCCL_TRANSPORT': 'shm'}),
        ['FSCCL_ERR_NOT_AVAILABLE', 'FSCCL_TRANSPORT=shm', 'FSCCL_HOST_ID'],
    )
    expect(
        'a hierarchy that only one rank wants',
        once(of_last={'FSCCL_HIERARCHY': 'off'}),
        ['FSCCL_ERR_MISMATCH', 'FSCCL_HIERARCHY'],
    )
    expect(
        'a way over UCX that only one rank wants',
        once(of_last={'FSCCL_UCX_PATH': 'get'}),
        ['FSCCL_ERR_MISMATCH', 'FSCCL_UCX_PATH'],
    )
    expect(
        'checksums that only one rank wants',
        once(of_last={'FSCCL_CHECKSUM': '1'}),
        ['FSCCL_ERR_MISMATCH', 'FSCCL_CHECKSUM'],
    )
    choices(perf, once, last)
    with tempfile.TemporaryDirectory() as folder:
        first_here = {'LD_LIBRARY_PATH': f'{folder}:{os.environ.get("LD_LIBRARY_PATH", "")}'}
        os.symlink(os.path.abspath(other_version), f'{folder}/libfsccl.so.0')
        # A rank that comes after rank 0 has ended with this error cannot reach it, so the error of
        # the ranks in the middle may be another one.
        results = once({'FSCCL_TIMEOUT_MS': '10000'}, first_here)
        expect(
            'a library of another version',
            [results[0], results[last]],
            ['FSCCL_ERR_VERSION', f'rank {last} runs ', 'the same version'],
        )
        expect('a library of another version, the others', results[1:last], ['FSCCL_ERR_'])
        os.unlink(f'{folder}/libfsccl.so.0')
        without_ucx(once, folder, first_here, last)
    nowhere = {'FSCCL_TCP_INTERFACE': 'nosuch0'}
    if NETWORK == 'tcp':
        expect(
            'an interface that is not there',
            once(of_last=nowhere),
            [
                'FSCCL_ERR_NOT_AVAILABLE',
                f'rank {last} cannot use the tcp transport',
                'FSCCL_TCP_INTERFACE=nosuch0',
                'ip addr',
            ],
        )
    else:
        expect(
            'devices that are not there',
            once({'UCX_NET_DEVICES': 'nosuch0', 'UCX_TLS': 'tcp'}),
            ['FSCCL_ERR_NOT_AVAILABLE', 'UCX', 'UCX_NET_DEVICES', 'ucx_info -d'],
        )
    sys.exit(1 if failed else 0)


main()
