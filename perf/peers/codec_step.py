#!/usr/bin/env python3
"""Measures the gathers of FSDP steps between two hosts with and without a codec: `fsccl-perf step
--codec delta` in two network namespaces of this machine, at some rates of the link between them.

  codec_step.py [--build build] [--rates 1gbit 10gbit none] [-- OPTIONS OF fsccl-perf step]

The rows of a rate are from one run, in which the three ways take turns step by step. The script
needs the right to make namespaces (tests/hosts/hosts.py).
"""

import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
HOSTS = os.path.join(ROOT, 'tests', 'hosts', 'hosts.py')
TIMEOUT_S = 900


def rank_commands(options):
    """Yields the command of each rank, one for each host. This runs inside hosts.py, which names
    the namespaces in TEST_HOSTS."""
    names = os.environ['TEST_HOSTS'].split(',')
    if not names[0].startswith('/'):
        sys.exit('codec_step: the kernel gives no network namespaces here')
    program = os.path.join(options.build, 'perf', 'fsccl-perf')
    for rank, name in enumerate(names):
        words = {
            'RANK': rank,
            'WORLD_SIZE': len(names),
            'LOCAL_RANK': 0,
            'LOCAL_WORLD_SIZE': 1,
            'MASTER_ADDR': '10.119.0.1',
            'MASTER_PORT': 29517,
        }
        yield [
            'nsenter',
            f'--net={name}',
            'env',
            *(f'{key}={value}' for key, value in words.items()),
            program,
            'step',
            '--codec',
            'delta',
            *options.options,
        ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--build', default=os.path.join(ROOT, 'build'))
    parser.add_argument('--rates', nargs='+', default=['1gbit', '10gbit', 'none'])
    parser.add_argument('options', nargs='*')
    options = parser.parse_args()
    if 'TEST_HOSTS' in os.environ:
        running = [subprocess.Popen(command) for command in rank_commands(options)]
        sys.exit(max(process.wait(TIMEOUT_S) != 0 for process in running))
    secret = tempfile.NamedTemporaryFile('w', suffix='.secret')
    secret.write(os.urandom(16).hex())
    secret.flush()
    os.environ['FSCCL_JOB_SECRET_FILE'] = secret.name
    for rate in options.rates:
        print(f'link: {rate}', flush=True)
        limit = [] if rate == 'none' else ['--rate', rate]
        command = [
            sys.executable,
            HOSTS,
            '--hosts',
            '2',
            *limit,
            '--',
            sys.executable,
            __file__,
            '--build',
            options.build,
            '--',
            *options.options,
        ]
        if subprocess.run(command, check=False).returncode:
            sys.exit(f'codec_step: the run at {rate} failed')


if __name__ == '__main__':
    main()
