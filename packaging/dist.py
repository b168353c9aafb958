#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs the sources of the last commit with `meson dist`, so that the same commit gives the same
bytes whoever packs it.

usage: packaging/dist.py BUILD_FOLDER [OUTPUT_FOLDER]
"""

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / 'tools'))
from ask_git import ask_git  # noqa: E402


def nobody(entry):
    """The archive does not say who packed it."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ''
    return entry


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    build, output = Path(sys.argv[1]), Path(sys.argv[-1] if len(sys.argv) == 3 else '.')
    output.mkdir(parents=True, exist_ok=True)
    ask_git(ROOT, 'rev-parse', 'HEAD')
    done = subprocess.run(
        [
            os.environ.get('MESON', 'meson'),
            'dist',
            '-C',
            str(build),
            '--no-tests',
            '--allow-dirty',
            '--formats',
            'xztar',
        ],
        check=False,
    )
    if done.returncode:
        sys.exit(f'meson dist ended with {done.returncode}')
    packed = max(
        (build / 'meson-dist').glob('fsccl-*.tar.xz'), key=lambda path: path.stat().st_mtime
    )
    path = output / packed.name
    with (
        tarfile.open(packed) as source,
        tarfile.open(path, 'w:xz', format=tarfile.PAX_FORMAT) as target,
    ):
        for entry in source:
            target.addfile(nobody(entry), source.extractfile(entry) if entry.isfile() else None)
    print(
        f'{path}: {path.stat().st_size} bytes, sha256 '
        f'{hashlib.sha256(path.read_bytes()).hexdigest()}'
    )


if __name__ == '__main__':
    main()
