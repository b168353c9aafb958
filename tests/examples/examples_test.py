#!/usr/bin/env python3
"""Tests that the examples do what they promise: training reaches its accuracy, and its losses do
not depend on the number of ranks.

usage: examples_test.py losses|mixed|flat|codecs|hello|gpu|allocators|usage PROGRAM
"""

import os
import pathlib
import subprocess
import sys
import tempfile

# If the batch is divided otherwise, fp32 sums have another order. train.c promises this tolerance.
RELATIVE_TOLERANCE = 1e-4
TIMEOUT_SECONDS = 300


def run(program, *arguments, status=0):
    """Runs the program and returns its output. Another exit status than the expected one ends the
    test."""
    command = [program, *arguments]
    result = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    if result.returncode != status:
        sys.exit(
            f'{" ".join(command)}: exit status {result.returncode} instead of '
            f'{status}\n{result.stdout}'
        )
    return result.stdout


def losses(program, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'losses'
        run(program, '--print-losses', str(path), *arguments)
        return [float(line) for line in path.read_text(encoding='utf-8').split()]


def compare(reference, other, what):
    if len(reference) != len(other):
        sys.exit(f'{what}: {len(other)} epochs instead of {len(reference)}')
    worst = max(abs(a - b) / a for a, b in zip(reference, other))
    print(f'{what}: losses differ by at most {worst:.2e} of their value')
    if not worst <= RELATIVE_TOLERANCE:
        sys.exit(
            f'{what}: more than {RELATIVE_TOLERANCE} is a difference of the '
            f'training:\n{reference}\n{other}'
        )


def check_losses(program):
    reference = losses(program, '--ranks', '1')
    if not (len(reference) == 20 and reference[0] > 0.2 and reference[-1] < 0.05):
        sys.exit(f'one rank does not learn: {reference}')
    for ranks in ('2', '3', '4'):
        compare(reference, losses(program, '--ranks', ranks), f'{ranks} ranks')


def check_flat(program):
    reference = losses(program, '--ranks', '1', '--epochs', '20')
    compare(reference, losses(program, '--ranks', '3', '--flat'), '3 ranks, flat layout')


def check_mixed(program):
    print(
        run(program, '--ranks', '2', '--mixed')
    )  # its exit status says whether the accuracy is reached


def check_codecs(program):
    """On one host a codec changes the losses, by little, only where it is asked to code there."""
    few = ('--ranks', '2', '--mixed', '--gather-codec', 'int8', '--reduce-codec', 'int8+')
    plain = losses(program, '--ranks', '2', '--mixed')
    if losses(program, *few) != plain:
        sys.exit('codecs between hosts changed the losses on one host')
    custom = ('--gather-codec', 'float12', '--reduce-codec', 'float12+')
    for codecs in (few, ('--ranks', '2', '--mixed', *custom)):
        everywhere = losses(program, *codecs, '--codecs-everywhere')
        print(f'codecs everywhere: {everywhere[-1]:.5f}, without: {plain[-1]:.5f}')
        if everywhere == plain or abs(everywhere[-1] - plain[-1]) > 0.2 * plain[-1]:
            sys.exit(f'{codecs} everywhere:\n{plain}\n{everywhere}')


def check_gpu(program):
    """Runs two ranks on one GPU, unless there is none, which the program reports. Over the stand-in
    driver only kernels may be missing."""
    output = run(program)
    if 'there is nothing to run on here' in output:
        if os.environ.get('TEST_NEEDS_GPU') and 'nvcc' not in output:
            sys.exit(f'the stand-in driver is not taken for a GPU:\n{output}')
        print(output)
        return
    lines = sorted(
        line for line in output.splitlines() if not line.startswith('fsccl[')
    )  # variables of the stand-in
    expected = [
        f'rank {rank}: gathered 4194304 elements on the GPU, reduced gradients of 2097152'
        for rank in range(2)
    ]
    if lines != expected:
        sys.exit(f'the example printed:\n{output}')


def check_hello(program):
    lines = sorted(run(program).splitlines())
    expected = [
        'rank 0: elements 0 to 3 have gradient 0 1 2 3',
        'rank 1: elements 4 to 7 have gradient 4 5 6 7',
    ]
    if lines != expected:
        sys.exit(f'expected {expected}, got {lines}')


def check_allocators(program):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'log.csv'
        refused, *rest = run(program, str(path)).splitlines()
        lines = [line.split(',') for line in path.read_text(encoding='utf-8').splitlines()]
    if 'limit of 8388608 bytes' not in refused or rest != [
        'the pool holds 6 MiB',
        'given back: all',
    ]:
        sys.exit(f'unexpected: {[refused, *rest]}')
    # The second request is tried again after the pool has given back what blocks do not use.
    rows = [(action, int(size)) for _, _, action, _, size, _ in lines[1:]]
    if (
        rows[0] != ('allocate', 6 << 20)
        or rows[-1] != ('free', 6 << 20)
        or ('allocate failure', 4 << 20) not in rows
    ):
        sys.exit(f'unexpected log: {lines}')


def check_usage(program):
    """An option that is not understood ends the program with the accepted values, and bad data ends
    it with its line; too little training fails."""
    for ranks in ('0', '2x', '257'):
        if 'from 1 to 256' not in run(program, '--ranks', ranks, status=2):
            sys.exit(f'--ranks {ranks}: the accepted numbers are not named')
    run(program, '--ranks', '2', '--epochs', '1', status=1)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'bad.csv'
        path.write_text(
            ','.join(['0'] * 64) + ',3\n' + ','.join(['17'] * 64) + ',3\n', encoding='utf-8'
        )
        if 'bad.csv:2:' not in run(program, '--data', str(path), status=1):
            sys.exit('the bad line is not named')


if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    checks = {
        'losses': check_losses,
        'mixed': check_mixed,
        'flat': check_flat,
        'codecs': check_codecs,
        'hello': check_hello,
        'gpu': check_gpu,
        'allocators': check_allocators,
        'usage': check_usage,
    }
    checks[sys.argv[1]](sys.argv[2])
