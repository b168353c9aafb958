#!/usr/bin/env python3
"""Runs a command that can use several hosts, which are network namespaces joined by a bridge.

    hosts.py --hosts 2 [--rate 1gbit] [--loss 1] -- command ...

The command finds their names in TEST_HOSTS (paths of /run/netns, separated by commas) and enters
them with setns(). If the kernel does not allow namespaces, TEST_HOSTS is a number. Then only
FSCCL_HOST_ID tells processes of different hosts apart. Addresses are 10.119.0.1, 10.119.0.2 and so
on. Everything is gone when the command has ended.

--loss needs namespaces and a kernel with the BPF classifier of tc. Without them the exit status is
77, which means skipped.
"""

import argparse
import os
import shutil
import subprocess
import sys

FOLDER = '/run/netns'
SKIPPED = 77


def inside():
    """Continues in namespaces of its own, so that what is made there ends with this process."""
    for flags in (['--net', '--mount'], ['--user', '--map-root-user', '--net', '--mount']):
        if (
            subprocess.run(
                ['unshare', *flags, 'true'], stderr=subprocess.DEVNULL, check=False
            ).returncode
            == 0
        ):
            os.environ['TEST_HOSTS_INSIDE'] = '1'
            os.execvp('unshare', ['unshare', *flags, '--kill-child', sys.executable, *sys.argv])
    return False


def ip(*words):
    subprocess.run(['ip', *words], check=True)


def tc(*words):
    return subprocess.run(['tc', *words], check=False, stderr=subprocess.PIPE, text=True)


def skip(reason):
    print(f'skipped: {reason}', file=sys.stderr)
    if 'TEST_RECORD' in os.environ:
        with open(os.environ['TEST_RECORD'] + '.reason', 'w', encoding='utf-8') as file:
            file.write(reason)
    sys.exit(SKIPPED)


def drop(name, percent):
    """Drops random packets that arrive at the host, by four instructions of classic BPF, because
    netem is not in every kernel."""
    random_word, shot, next_filter = (
        0xFFFFF000 + 56,
        2,
        0xFFFFFFFF,
    )  # SKF_AD_OFF + SKF_AD_RANDOM, TC_ACT_SHOT, TC_ACT_UNSPEC
    program = [
        (0x20, 0, 0, random_word),  # A = 32 random bits
        (0x35, 1, 0, int(percent / 100 * 2**32)),  # if A >= K, skip one
        (0x06, 0, 0, shot),  # return
        (0x06, 0, 0, next_filter),
    ]
    bytecode = ','.join(
        [str(len(program)), *(' '.join(map(str, instruction)) for instruction in program)]
    )
    for words in (
        ['qdisc', 'add', 'dev', 'eth0', 'clsact'],
        ['filter', 'add', 'dev', 'eth0', 'ingress', 'bpf', 'direct-action', 'bytecode', bytecode],
    ):
        done = tc('-n', name, *words)
        if done.returncode != 0:
            skip(f'this kernel drops no packets for tc: {done.stderr.strip()}')
    # Each packet is one frame, as on a wire. Otherwise one lost packet would have up to 64 KiB.
    ip('-n', name, 'link', 'set', 'eth0', 'gso_max_segs', '1')


def make(number, rate, loss):
    subprocess.run(['mount', '-t', 'tmpfs', 'none', '/run'], check=True)
    os.makedirs(FOLDER)
    ip('link', 'add', 'between', 'type', 'bridge')
    ip('link', 'set', 'between', 'up')
    names = []
    for host in range(number):
        name, outer = f'host{host}', f'port{host}'
        ip('netns', 'add', name)
        ip('link', 'add', outer, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', name)
        ip('link', 'set', outer, 'master', 'between', 'up')
        ip('-n', name, 'addr', 'add', f'10.119.0.{host + 1}/24', 'dev', 'eth0')
        ip('-n', name, 'link', 'set', 'eth0', 'up')
        ip('-n', name, 'link', 'set', 'lo', 'up')
        if rate:
            for net, device in ((['-n', name], 'eth0'), ([], outer)):
                limit = ['root', 'tbf', 'rate', rate, 'burst', '256k', 'latency', '20ms']
                tc(*net, 'qdisc', 'add', 'dev', device, *limit).check_returncode()
        if loss:
            drop(name, loss)
        names.append(f'{FOLDER}/{name}')
    return names


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--hosts', type=int, default=2)
    parser.add_argument('--rate', help='of every link in both directions, as tc has it: 1gbit')
    parser.add_argument(
        '--loss', type=float, default=0, help='of the packets that arrive at a host, in percent: 1'
    )
    parser.add_argument('command', nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ['--'] else options.command
    if not command:
        parser.error('no command')
    command[0] = shutil.which(command[0]) or command[0]
    real = 'TEST_HOSTS_INSIDE' in os.environ or (
        shutil.which('ip') and shutil.which('unshare') and inside()
    )
    if real:
        os.environ['TEST_HOSTS'] = ','.join(make(options.hosts, options.rate, options.loss))
    elif options.loss:
        skip('this kernel allows no network namespaces')
    else:
        print(
            'no network namespaces here: hosts are told apart by FSCCL_HOST_ID alone',
            file=sys.stderr,
        )
        os.environ['TEST_HOSTS'] = str(options.hosts)
    sys.stdout.flush()
    os.execv(command[0], command)


if __name__ == '__main__':
    main()
