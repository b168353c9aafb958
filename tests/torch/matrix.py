#!/usr/bin/env python3
"""Tests fsccl_torch with other versions of torch than the one that the other tests use.

usage: matrix.py --make VERSION FOLDER             makes a virtual environment with that torch
       matrix.py LIBRARY [VERSION ...] [--quick]    runs the tests in an environment for each
                                                    version; removes it before the next

The tests are those of the backend and of FSDP1, FSDP2, HSDP, DDP, checkpoints and torch.compile.
With --quick only a few of each run. An environment takes 2 GB and is made below build-torch/. torch
comes from PyPI without the CUDA libraries that it depends on, in whose place without_cuda.py puts
stand-ins. If build-torch/VERSION exists already, it is used and stays.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VERSIONS = (
    '2.7.0',
    '2.9.0',
    '2.11.0',
    '2.13.0',
)  # all other tests run with the version of requirements.txt
FREE_GB = 6  # for one environment while it is made, and for what the tests write
# torch asks for these packages besides CUDA.
WITH_TORCH = (
    'filelock',
    'typing-extensions',
    'sympy',
    'networkx',
    'jinja2',
    'fsspec',
    'setuptools>=77',
)
TESTS = {  # file: what of it --quick runs
    'collectives_test.py': 'float32 and 2- and plain',
    'backend_test.py': 'works or state',
    'groups_test.py': '',
    'messages_test.py': '',
    'owners_test.py': 'shards or shares',
    'turns_test.py': 'equal_sizes or power_sgd',
    'failures_test.py': 'torch_that',
    'survivors_test.py': 'finds_out',
    'example_test.py': '',
    'fsdp2/fsdp2_test.py': 'two_ranks and (plain or bfloat16 or accumulated) or four_ranks and tensor_parallel',
    'fsdp2/frozen_test.py': 'data or once',
    'fsdp2/lifetime_test.py': 'view or trained',
    'fsdp2/switches_test.py': 'custom or divisor or accumulated',
    'systems/fsdp_test.py': 'fsdp1 or hsdp',
    'systems/ddp_test.py': 'ddp',
    'systems/checkpoint_test.py': 'resume',
    'systems/compile_test.py': 'functional_collectives or shard_then_compile and not inductor',
}
FULL = {'systems/compile_test.py': 'not inductor'}  # with inductor it compiles for minutes


def say(text):
    print(f'{time.strftime("%H:%M:%S")} {text}', flush=True)


def requirements():
    lines = (HERE / 'requirements.txt').read_text().splitlines()
    return [line for line in lines if line and not line.startswith(('#', 'torch=='))]


def check_space(folder):
    free = shutil.disk_usage(folder).free / 1e9
    if free < FREE_GB:
        sys.exit(
            f'{free:.1f} GB are free in {folder}; an environment with torch needs {FREE_GB}: make '
            f'room there'
        )


def make(version, folder, more=()):
    """Makes a virtual environment with that torch and with `more` packages, complete or not at
    all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    check_space(folder.parent)
    shutil.rmtree(folder, ignore_errors=True)
    log = folder.with_name(folder.name + '.log')
    pip = [
        folder / 'bin/python',
        '-m',
        'pip',
        'install',
        '--disable-pip-version-check',
        '--no-cache-dir',
    ]
    try:
        with log.open('w') as lines:
            for command in (
                [sys.executable, '-m', 'venv', folder],
                [*pip, '--no-deps', f'torch=={version}'],
                [*pip, *WITH_TORCH, *requirements(), *more],
            ):
                subprocess.run(
                    [str(word) for word in command],
                    stdout=lines,
                    stderr=subprocess.STDOUT,
                    check=True,
                )
            (packages,) = folder.glob('lib/python3*/site-packages')
            subprocess.run(
                [sys.executable, HERE / 'without_cuda.py', packages],
                stdout=lines,
                stderr=subprocess.STDOUT,
                check=True,
            )
            subprocess.run(
                [folder / 'bin/python', '-c', 'import torch.distributed'],
                stdout=lines,
                stderr=subprocess.STDOUT,
                check=True,
            )
    except (subprocess.CalledProcessError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        tail = '\n'.join(log.read_text().splitlines()[-5:])
        sys.exit(f'an environment with torch {version} could not be made ({log}):\n{tail}\n{error}')


def install_package(folder, library):
    """Installs the package of the tree, by whose entry point torch finds it. The tests use the
    modules of the tree."""
    subprocess.run(
        [
            folder / 'bin/python',
            '-m',
            'pip',
            'install',
            '--disable-pip-version-check',
            '-q',
            '--no-deps',
            '--no-build-isolation',
            '--force-reinstall',
            ROOT / 'bindings/torch',
        ],
        env={**os.environ, 'FSCCL_TORCH_LIBRARY': library},
        check=True,
    )


def run_tests(folder, library, quick):
    """Returns the files that failed, and how many cases passed and failed."""
    failed, counts = [], {'passed': 0, 'failed': 0}
    for file, some in TESTS.items():
        words = some if quick else FULL.get(file, '')
        command = [
            sys.executable,
            HERE / 'run.py',
            HERE / file,
            library,
            folder.relative_to(ROOT / 'build-torch'),
            '-q',
        ]
        done = subprocess.run(
            [str(word) for word in [*command, *(['-k', words] if words else [])]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else 'it printed nothing'
        say(f'  {file}: {last}')
        for count, word in re.findall(r'(\d+) (passed|failed|error)', last):
            counts['passed' if word == 'passed' else 'failed'] += int(count)
        if done.returncode:
            print(done.stdout, flush=True)
            failed.append(file)
    return failed, counts


def main():
    if sys.argv[1:2] == ['--make'] and len(sys.argv) == 4:
        return make(sys.argv[2], pathlib.Path(sys.argv[3]))
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('library')
    parser.add_argument('versions', nargs='*', default=VERSIONS)
    parser.add_argument('--quick', action='store_true')
    given = parser.parse_intermixed_args()
    library, failures, total = (
        str(pathlib.Path(given.library).resolve()),
        [],
        {'passed': 0, 'failed': 0},
    )
    for version in given.versions:
        stays = ROOT / 'build-torch' / version
        folder = stays if (stays / 'bin/python').exists() else stays.with_name(f'matrix-{version}')
        try:
            if folder != stays:
                say(f'torch {version}: making an environment')
                make(version, folder)
            size = sum(path.lstat().st_size for path in folder.rglob('*')) / 1e9
            install_package(folder, library)
            say(f'torch {version} ({size:.1f} GB):')
            failed, counts = run_tests(folder, library, given.quick)
        finally:
            if folder != stays:
                shutil.rmtree(folder, ignore_errors=True)
        failures += [f'{version}: {file}' for file in failed]
        total = {word: total[word] + counts[word] for word in total}
    if failures:
        say(f'failed: {", ".join(failures)}')
    print(f'{total["passed"]} passed, {total["failed"]} failed')
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
