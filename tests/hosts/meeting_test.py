#!/usr/bin/env python3
"""Tests ranks of several hosts that have only RANK, WORLD_SIZE and MASTER_ADDR to find each other.
Their MASTER_ADDRs are different names of the same host:

hosts.py --hosts 2 -- meeting_test.py fsccl-perf
"""

import os
import subprocess
import sys
import time

import ranks

PER_HOST = 2
COUNT = 4
BY_HAND = {'LOCAL_RANK': '', 'LOCAL_WORLD_SIZE': '', 'FSCCL_TIMEOUT_MS': '60000'}
failed = 0


def ip(*words):
    return subprocess.run(['ip', *words], check=True, capture_output=True, text=True).stdout


def join(perf, addresses, **more):
    """Returns the result of each rank. Rank r gets addresses[r] as MASTER_ADDR."""
    command = [perf, 'collectives', '-b', '64', '-e', '64', '-n', '1']
    processes = ranks.start(
        command, PER_HOST, BY_HAND | more, lambda rank: {'MASTER_ADDR': addresses[rank]}
    )
    return ranks.ends(processes)


def expect(name, results, status, words=()):
    global failed
    for rank, (ended, _, errors) in enumerate(results):
        if ended == status and all(word in errors for word in words):
            continue
        failed += 1
        print(f'{name}: rank {rank} ended with {ended}: {errors}')
    print(f'{name}: done')


def add_ip6():
    """Gives each host an IPv6 address, and waits until its link-local addresses can be used.
    Returns the link-local address of the first host, or None if this system has no IPv6."""
    if not os.path.exists('/proc/net/if_inet6'):
        return None
    for host in range(2):
        ip('-n', f'host{host}', 'addr', 'add', f'fd77::{host + 1}/64', 'dev', 'eth0', 'nodad')
    for host in range(2):
        while ip('-n', f'host{host}', '-6', 'addr', 'show', 'dev', 'eth0', 'tentative').strip():
            time.sleep(0.1)
    found = ip('-n', 'host0', '-6', '-o', 'addr', 'show', 'dev', 'eth0', 'scope', 'link').split()
    return found[3].split('/')[0] if len(found) > 3 else None


def main():
    perf = sys.argv[1]
    first = '10.119.0.1' if ranks.real() else '127.0.0.1'
    for name in 'localhost', '127.0.0.1', '0.0.0.0', first, f'::ffff:{first}', '[::1]':
        expect(f'rank 0 is told {name}', join(perf, [name] + [first] * (COUNT - 1)), 0)
    expect(
        'both ranks of the first host are told localhost',
        join(perf, ['localhost'] * 2 + [first] * 2),
        0,
    )
    if ranks.real():
        without = {'FSCCL_JOB_SECRET_FILE': '', 'FSCCL_TIMEOUT_MS': '5000'}
        results = join(perf, ['localhost'] * 2 + [first] * 2, **without)
        expect(
            'another host without a secret',
            results[2:],
            1,
            ['FSCCL_ERR_AUTH', 'MASTER_ADDR=10.119.0.1 is not this one'],
        )
        expect(
            'the first host, when others have no secret',
            results[:2],
            1,
            ['missing: 2, 3', 'FSCCL_JOB_SECRET_FILE'],
        )
        if link_local := add_ip6():
            expect(
                'an address of IPv6, spelled differently',
                join(perf, ['fd77::1', 'fd77:0:0::1', 'FD77::0001', '[fd77::1]']),
                0,
            )
            index = ip('-n', 'host1', '-o', 'link', 'show', 'dev', 'eth0').split(':')[0]
            scoped = [f'{link_local}%eth0', f'{link_local}%{index}']
            expect(
                'link-local addresses', join(perf, [f'{link_local}%eth0', 'localhost', *scoped]), 0
            )
            told = ['localhost', f'{link_local}%eth0', link_local, scoped[1]]
            expect('link-local addresses, of rank 0 localhost', join(perf, told), 0)
    sys.exit(1 if failed else 0)


if __name__ == '__main__':
    main()
