#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the archive of the sources is the same whoever packs it, and when, and that it has the
bill of materials and everything that a build needs.

usage: dist_test.py ROOT BUILD_FOLDER
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path


def pack(root, build, folder, umask):
    assert not folder.exists()  # the program makes it
    words = [sys.executable, root / 'packaging/dist.py', build, folder]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, umask=umask
    )
    assert done.returncode == 0, done.stdout
    (path,) = folder.glob('fsccl-*.tar.xz')
    return path


def main():
    root, build = map(Path, sys.argv[1:])
    os.environ.pop('SOURCE_DATE_EPOCH', None)
    with tempfile.TemporaryDirectory() as folder:
        first = pack(root, build, Path(folder, 'first'), 0o022)
        time.sleep(1.1)  # if the archive had a time in it, that would differ
        second = pack(root, build, Path(folder, 'second'), 0o077)
        assert first.read_bytes() == second.read_bytes(), 'two archives of one commit differ'
        with tarfile.open(first) as archive:
            names = {entry.name.partition('/')[2]: entry for entry in archive}
            content = json.load(archive.extractfile(names['fsccl.cdx.json']))
        found = {entry['name']: entry for entry in content['components']}
        assert content['bomFormat'] == 'CycloneDX' and {'fmt', 'ucx', 'CLI11'} <= set(found), found
        of_machine = [name for name in found if 'version' in found[name]]
        assert not of_machine, f'the archive has versions of this machine: {of_machine}'
        assert {
            'meson.build',
            'LICENSE',
            'include/fsccl/fsccl.h',
            'bindings/python/setup.py',
        } <= set(names)
        assert len({entry.mtime for entry in names.values()}) == 1 and {
            entry.uid for entry in names.values()
        } == {0}


if __name__ == '__main__':
    main()
