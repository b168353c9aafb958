#!/usr/bin/env python3
"""Tests fsccl_torch.xla, PyTorch/XLA's FSDP over FSCCL, with torch_xla 2.9 and torch 2.9.

usage: xla.py LIBRARY [argument of pytest ...]

The environment takes 2.2 GB. It is made below build-torch/, as matrix.py makes those of other
versions of torch, and removed after the tests. If build-torch/xla exists already, it is used and
stays. If torch_xla has no package for this Python (3.10 to 3.13 have one), the test is skipped.
"""

import pathlib
import shutil
import subprocess
import sys

import matrix

VERSION = '2.9.0'
PYTHONS = range(10, 14)
SKIPPED = 77


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.version_info.minor not in PYTHONS:
        version = f'{sys.version_info.major}.{sys.version_info.minor}'
        print(f'torch_xla {VERSION} has no package for Python {version}, so nothing was tested')
        return SKIPPED
    library, stays = str(pathlib.Path(sys.argv[1]).resolve()), matrix.ROOT / 'build-torch/xla'
    folder = stays if (stays / 'bin/python').exists() else stays.with_name('only-xla')
    try:
        if folder != stays:
            matrix.make(VERSION, folder, [f'torch_xla=={VERSION}'])
        matrix.install_package(folder, library)
        test = matrix.HERE / 'systems/xla_test.py'
        command = [sys.executable, matrix.HERE / 'run.py', test, library, folder.name]
        return subprocess.run([*map(str, command), *sys.argv[2:]], check=False).returncode
    finally:
        if folder != stays:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == '__main__':
    sys.exit(main())
