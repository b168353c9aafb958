#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that every recipe of packaging/ has the version of meson.build, and names each library that
meson.build requires, and that each file that Meson installs is in one Debian package.

usage: recipes_test.py ROOT BUILD_FOLDER
"""

import json
import re
import runpy
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
# Debian's value of each of Meson's folders.
FOLDERS = {
    'bindir': 'usr/bin',
    'datadir': 'usr/share',
    'includedir': 'usr/include',
    'libdir': 'usr/lib/triplet',
    'libdir_shared': 'usr/lib/triplet',
    'mandir': 'usr/share/man',
    'moduledir_shared': 'usr/lib/triplet',
}


def installed(build):
    """Returns the path of each file that Meson installs in a Debian package, links of libraries
    included."""
    plan = json.loads((build / 'meson-info/intro-install_plan.json').read_text(encoding='utf-8'))
    paths = set()
    for kind in plan.values():
        for file in kind.values():
            path = file['destination'].format(**FOLDERS)
            library, dot, version = path.partition('.so.')
            numbers = version.split('.') if dot else []
            paths |= {path, *('.'.join([library, 'so', *numbers[:n]]) for n in range(2) if dot)}
    return paths


def check_debian_packages(root, build):
    """dh_missing refuses a file that no package takes, and dh_install a pattern without a file."""
    patterns = {
        line: path.name
        for path in (root / 'packaging/debian').glob('*.install')
        for line in path.read_text(encoding='utf-8').split()
    }
    paths = installed(build)

    def takes(pattern, path):
        return re.fullmatch(re.escape(pattern).replace(r'\*', '[^/]*') + '(/.*)?', path)

    for path in sorted(paths):
        takers = {name for pattern, name in patterns.items() if takes(pattern, path)}
        assert len(takers) == 1, (
            f'{path} is in {len(takers)} packages ({", ".join(sorted(takers))}): name it in one '
            '.install file of packaging/debian'
        )
    control = (root / 'packaging/debian/control').read_text(encoding='utf-8')
    for pattern, name in patterns.items():
        assert any(takes(pattern, path) for path in paths), f'{name}: {pattern} matches no file'
        assert f'\nPackage: {name.removesuffix(".install")}\n' in control, f'{name}: no package'


def main():
    root, build_folder = map(Path, sys.argv[1:])

    def read(name):
        return (root / name).read_text(encoding='utf-8')

    build = read('meson.build') + read('tools/meson.build')
    version = re.search(r"version: '([\d.]+)'", build)[1]
    needed = set(re.findall(r"(?<!_)dependency\('(\w+)'", build)) - SYSTEM
    assert needed == set(NAMES), (
        f'meson.build needs {sorted(needed)}, the recipes are made for {sorted(NAMES)}'
    )
    bill = runpy.run_path(str(root / 'tools/packaging/bill_of_materials.py'))
    assert set(bill['KNOWN']) == needed, 'KNOWN of bill_of_materials.py and meson.build differ'
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
    check_debian_packages(root, build_folder)


if __name__ == '__main__':
    main()
