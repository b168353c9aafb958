#!/usr/bin/env python3
"""Runs one Python test of fsccl_jax in a virtual environment below build-jax. It makes the
environment if it is missing, or was made from other requirements. If several tests begin at once,
one makes it and the others wait.

usage: run.py [--environment NAME] FILE LIBRARY... -- [argument ...]

An environment is made of requirements/NAME.txt, whose first line says for which Python: `base`, by
default, or `newest`. The package is the one of the tree, with the LIBRARY files of the build tree.
If there is no such Python, a test with `newest` is skipped. With `base` it fails, because nothing
would be tested.
"""

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
REQUIREMENTS = pathlib.Path(__file__).with_name('requirements')
NAMES = ('python3', 'python3.13', 'python3.12', 'python3.11')
SKIPPED = 77


def wanted_python(requirements):
    """Returns the oldest Python for which the requirements are. Their first line names it, for
    example "# Python 3.11"."""
    return tuple(int(part) for part in requirements.split('\n')[0].split()[2].split('.'))


def find_python(wanted):
    for name in NAMES:
        check = [name, '-c', f'import ensurepip, sys; sys.exit(sys.version_info < {wanted})']
        if (
            shutil.which(name)
            and subprocess.run(check, check=False, stderr=subprocess.DEVNULL).returncode == 0
        ):
            return name
    version = '.'.join(map(str, wanted))
    print(f'no Python from {version} on with venv is here, so nothing was tested')
    sys.exit(SKIPPED if wanted > (3, 11) else 1)


def environment(folder):
    """Makes the environment if it is missing or of other requirements. Returns its interpreter."""
    python, stamp, log = folder / 'bin/python', folder / '.complete', folder.with_suffix('.log')
    folder.parent.mkdir(exist_ok=True)
    with (
        open(folder.with_suffix('.lock'), 'w', encoding='utf-8') as lock,
        open(log, 'a', encoding='utf-8') as output,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = REQUIREMENTS / f'{folder.name}.txt'
        requirements = file.read_text(encoding='utf-8')
        wanted = f'{folder} {requirements}'
        if stamp.is_file() and stamp.read_text(encoding='utf-8') == wanted:
            return python
        shutil.rmtree(folder, ignore_errors=True)
        for command in (
            [find_python(wanted_python(requirements)), '-m', 'venv', str(folder)],
            [
                str(python),
                '-m',
                'pip',
                'install',
                '--disable-pip-version-check',
                '-r',
                str(file),
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
    name = 'base'
    if words[0] == '--environment':
        _, name, *words = words
    file, *libraries = words
    # Links are resolved, so that trees whose build-jax links to one folder share its environments.
    python = environment((ROOT / 'build-jax' / name).resolve())
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
