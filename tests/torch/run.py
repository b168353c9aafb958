#!/usr/bin/env python3
"""Runs one Python test of fsccl_torch in a virtual environment that tools/test has set up: with
pytest if it is called ..._test.py, as a program otherwise.

usage: run.py FILE LIBRARY ENVIRONMENT [argument ...]

The package is the one of the tree, with the LIBRARY of the build tree, so that no test uses an
older one. The package that is installed in the environment only provides the entry point by which
torch finds it. If the environment is missing, the test fails, because nothing was tested.
"""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    file, library, environment, *arguments = sys.argv[1:]
    python = ROOT / 'build-torch' / environment / 'bin/python'
    log = f'tools/test sets it up; its log is build-torch/{environment}.log'
    if not python.is_file():
        sys.exit(
            f'the virtual environment build-torch/{environment} is missing, so nothing was tested: '
            f'{log}'
        )
    if subprocess.run([python, '-c', 'import torch, pytest'], check=False).returncode != 0:
        sys.exit(
            f'the virtual environment build-torch/{environment} has no working torch, so nothing '
            f'was tested: {log}'
        )
    os.environ['PYTHONPATH'] = str(ROOT / 'bindings/torch')
    os.environ['FSCCL_TORCH_LIBRARY'] = str(pathlib.Path(library).resolve())
    os.environ['OMP_NUM_THREADS'] = '1'  # several ranks share the cores
    os.environ['PATH'] = f'{python.parent}:{os.environ["PATH"]}'
    pytest = (
        ['-m', 'pytest', '-p', 'no:cacheprovider', '--tb=short', '-ra']
        if file.endswith('_test.py')
        else []
    )
    os.execv(python, [str(python), *pytest, file, *arguments])


if __name__ == '__main__':
    main()
