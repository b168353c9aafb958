#!/usr/bin/env python3
"""Runs one Python test of fsccl_jax in the virtual environment build-jax/base, which it makes when
it is missing or of other requirements. Several tests that begin at once wait for the first.

usage: run.py FILE LIBRARY... -- [argument ...]

The package is the one of the tree, with the LIBRARY files of the build tree. A missing environment
is a failure: nothing was tested then.
"""

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
REQUIREMENTS = pathlib.Path(__file__).with_name('requirements.txt')
NAMES = ('python3', 'python3.13', 'python3.12', 'python3.11')


def newest_python():
    """JAX's wheels are for Python 3.11 and newer."""
    for name in NAMES:
        check = [name, '-c', 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))']
        if (
            shutil.which(name)
            and subprocess.run(check, check=False, stderr=subprocess.DEVNULL).returncode == 0
        ):
            return name
    sys.exit(
        'no Python from 3.11 on with venv is here, so nothing was tested: install one (Debian: '
        'python3-venv)'
    )


def environment(folder):
    """The interpreter of the environment, which is complete then."""
    python, stamp, log = folder / 'bin/python', folder / '.complete', folder.with_suffix('.log')
    folder.parent.mkdir(exist_ok=True)
    with (
        open(folder.with_suffix('.lock'), 'w', encoding='utf-8') as lock,
        open(log, 'a', encoding='utf-8') as output,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = f'{folder} {REQUIREMENTS.read_text(encoding="utf-8")}'
        if stamp.is_file() and stamp.read_text(encoding='utf-8') == wanted:
            return python
        shutil.rmtree(folder, ignore_errors=True)
        for command in (
            [newest_python(), '-m', 'venv', str(folder)],
            [
                str(python),
                '-m',
                'pip',
                'install',
                '--disable-pip-version-check',
                '-r',
                str(REQUIREMENTS),
            ],
        ):
            if (
                subprocess.run(
                    command, stdout=output, stderr=subprocess.STDOUT, check=False
                ).returncode
                != 0
            ):
                sys.exit(
                    f'the virtual environment {folder} could not be made, so nothing was tested: '
                    f'its log is {log}'
                )
        stamp.write_text(wanted, encoding='utf-8')
    return python


def main():
    if '--' not in sys.argv:
        sys.exit(__doc__)
    words, arguments = sys.argv[1 : sys.argv.index('--')], sys.argv[sys.argv.index('--') + 1 :]
    file, *libraries = words
    python = environment(ROOT / 'build-jax/base')
    folders = dict.fromkeys(str(pathlib.Path(library).resolve().parent) for library in libraries)
    os.environ['FSCCL_JAX_LIBRARIES'] = ':'.join(folders)
    os.environ['PYTHONPATH'] = str(ROOT / 'bindings/jax')
    os.environ['OMP_NUM_THREADS'] = '1'  # several ranks share the cores
    os.environ['PATH'] = f'{python.parent}:{os.environ["PATH"]}'
    os.execv(
        python,
        [
            str(python),
            '-m',
            'pytest',
            '-p',
            'no:cacheprovider',
            '--tb=short',
            '-ra',
            file,
            *arguments,
        ],
    )


if __name__ == '__main__':
    main()
