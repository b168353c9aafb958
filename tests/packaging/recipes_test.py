#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that every recipe of packaging/ has the version of meson.build, and names each library that
meson.build requires.

usage: recipes_test.py ROOT
"""

import re
import sys
from pathlib import Path

# The name in meson.build, and the names in Debian's control file and the Dockerfile, in Spack, and
# in conda.
NAMES = {
    'fmt': ('libfmt-dev', 'fmt', 'fmt'),
    'libsodium': ('libsodium-dev', 'libsodium', 'libsodium'),
    'libhwy': ('libhwy-dev', 'highway', 'libhwy'),
    'hwloc': ('libhwloc-dev', 'hwloc', 'libhwloc'),
    'nlohmann_json': ('nlohmann-json3-dev', 'nlohmann-json', 'nlohmann_json'),
    'ucx': ('libucx-dev', 'ucx', 'ucx'),
    'CLI11': ('libcli11-dev', 'cli11', 'cli11'),
}
SYSTEM = {'threads', 'dl'}


def main():
    root = Path(sys.argv[1])

    def read(name):
        return (root / name).read_text(encoding='utf-8')

    build = read('meson.build') + read('tools/meson.build')
    version = re.search(r"version: '([\d.]+)'", build)[1]
    needed = set(re.findall(r"(?<!_)dependency\('(\w+)'", build)) - SYSTEM
    assert needed == set(NAMES), (
        f'meson.build needs {sorted(needed)}, the recipes are made for {sorted(NAMES)}'
    )
    control, docker = read('packaging/debian/control'), read('packaging/Dockerfile')
    spack, conda = read('packaging/spack/package.py'), read('packaging/conda/meta.yaml')
    for debian, in_spack, in_conda in NAMES.values():
        assert re.search(rf'[ ,]{debian}\b', control) and re.search(rf' {debian}\b', docker), debian
        assert re.search(rf"depends_on\('{in_spack}\b", spack), in_spack
        assert re.search(rf'^    - {in_conda}$', conda, re.MULTILINE), in_conda
    sources = {
        line.split()[1]
        for line in read('packaging/wheel/sources.txt').splitlines()
        if not line.startswith('#')
    }
    assert sources == set(NAMES), f'packaging/wheel/sources.txt has {sorted(sources)}'
    assert f'fsccl ({version}) ' in read('packaging/debian/changelog'), version
    assert f"version('{version}')" in spack and f'version = "{version}"' in conda, version


if __name__ == '__main__':
    main()
