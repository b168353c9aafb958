# SPDX-License-Identifier: Apache-2.0
"""Puts an installed FSCCL into the package: library, headers, programs, CMake and pkg-config files,
a bill of materials.

FSCCL_WHEEL_PREFIX names, by an absolute path, a folder that FSCCL is installed in with --libdir=lib
(packaging/wheel/build.py does so); FSCCL_WHEEL_TREE its build folder. Without them the library is
built from the sources of this repository, with the shared libraries that it needs beyond those of
every Linux system put beside it.
"""

import json
import os
import re
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from setuptools import setup
from setuptools.errors import SetupError

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))
import wheels  # noqa: E402

ROOT = wheels.ROOT
# The C and C++ runtime: what uses the package needs it from the system as well.
SYSTEM_LIBRARIES = re.compile(
    r'linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so|libfsccl'
)
NEEDS = (
    'FSCCL is built with g++ 12 or clang 14 or newer, pkg-config, and the development files of '
    'libfmt, libsodium, Highway, hwloc, nlohmann-json and CLI11. On Debian and Ubuntu: '
    f'{wheels.DEBIAN} libcli11-dev. Or let FSCCL_WHEEL_PREFIX name a folder that has FSCCL.'
)
PROGRAMS = ('fsccl-info', 'fsccl-perf', 'fsccl-trace')


VERSION = wheels.version('python')
run = partial(wheels.run, needs=NEEDS)


def build_prefix(folder):
    """Builds and installs FSCCL there. Returns the prefix and the build folder."""
    tree, prefix = folder / 'tree', folder / 'prefix'
    run(
        'meson',
        'setup',
        tree,
        ROOT,
        '--buildtype=release',
        f'--prefix={prefix}',
        '--libdir=lib',
        '-Dtests=false',
        '-Dwerror=false',
        '-Dpkgconfig.relocatable=true',
        '-Dcpp_link_args=-Wl,-rpath,$ORIGIN',
    )
    targets = json.loads((tree / 'meson-info/intro-targets.json').read_text(encoding='utf-8'))
    files = [
        os.path.relpath(file, tree)
        for target in targets
        if target['installed']
        for file in target['filename']
    ]
    run('ninja', '-C', tree, *files)
    run('meson', 'install', '-C', tree, '--no-rebuild', '--quiet')
    for line in run('ldd', prefix / 'lib/libfsccl.so.0').splitlines():
        name, _, path = line.strip().partition(' => ')
        if not SYSTEM_LIBRARIES.search(name):
            shutil.copy(path.split(' (')[0], prefix / 'lib' / name)
    return prefix, tree


def change(path, pattern, value):
    text, count = re.subn(pattern, lambda match: value, path.read_text(encoding='utf-8'))
    if not count:
        raise SetupError(
            f'{path} has nothing that matches {pattern}: is it of another version than {VERSION}?'
        )
    path.write_text(text, encoding='utf-8')


def fill(target, prefix):
    """A wheel has no links: the library lies there once, by the name that programs ask for. A
    script takes the place of the link that linkers look for."""
    for name in ('bin', 'include', 'lib', 'share'):
        shutil.rmtree(target / name, ignore_errors=True)
    libraries = target / 'lib'
    libraries.mkdir(parents=True)
    shutil.copytree(prefix / 'include/fsccl', target / 'include/fsccl')
    (target / 'bin').mkdir()
    for name in PROGRAMS:
        shutil.copy(prefix / 'bin' / name, target / 'bin' / name)
    for path in (prefix / 'lib').glob('*.so.*'):
        if not path.name.startswith('libfsccl') or path.name == 'libfsccl.so.0':
            shutil.copy(path, libraries / path.name)
    (libraries / 'libfsccl.so').write_text('INPUT(libfsccl.so.0)\n', encoding='utf-8')
    for folder in ('pkgconfig', 'cmake/fsccl'):
        shutil.copytree(prefix / 'lib' / folder, libraries / folder)
    change(
        libraries / 'cmake/fsccl/fsccl-config.cmake',
        re.escape(f'libfsccl.so.{VERSION}'),
        'libfsccl.so.0',
    )
    for name, place in (
        ('prefix', '${pcfiledir}/../..'),
        ('includedir', '${prefix}/include'),
        ('libdir', '${prefix}/lib'),
    ):
        change(libraries / 'pkgconfig/fsccl.pc', f'(?m)^{name}=.*', f'{name}={place}')
    if (prefix / 'share').is_dir():
        shutil.copytree(prefix / 'share', target / 'share')


class BuildWithLibrary(wheels.FreshBuild):
    def run(self):
        super().run()
        target = self.target(FOLDER, 'fsccl')
        given = os.environ.get('FSCCL_WHEEL_PREFIX')
        if given and not Path(given, 'lib/libfsccl.so.0').is_file():
            raise SetupError(
                f'FSCCL_WHEEL_PREFIX is {wheels.looked_up(given)}, and there is no '
                'lib/libfsccl.so.0 in it: install FSCCL there with --libdir=lib'
            )
        if given:
            fill(target, Path(given))
            self.bill(os.environ.get('FSCCL_WHEEL_TREE'))
        else:
            with tempfile.TemporaryDirectory() as folder:
                prefix, tree = build_prefix(Path(folder))
                fill(target, prefix)
                self.bill(tree)

    def bill(self, tree):
        if tree:
            if not Path(tree).is_dir():
                raise SetupError(
                    f'FSCCL_WHEEL_TREE is {wheels.looked_up(tree)}, which is no folder: name the '
                    'build folder of FSCCL'
                )
            script = ROOT / 'tools/packaging/bill_of_materials.py'
            self.distribution.bill = run(sys.executable, script, tree)


class Platform(wheels.Platform):
    bill = None


class PlatformWheel(wheels.PlatformWheel):
    def write_wheelfile(self, wheelfile_base, *words, **options):
        """Beside its metadata lie the licence and, as PEP 770 has it, the bill of materials."""
        super().write_wheelfile(wheelfile_base, *words, **options)
        licences = Path(wheelfile_base, 'licenses')
        licences.mkdir(exist_ok=True)
        shutil.copy(ROOT / 'LICENSE', licences / 'LICENSE')
        if self.distribution.bill:
            folder = Path(wheelfile_base, 'sboms')
            folder.mkdir(exist_ok=True)
            (folder / 'fsccl.cdx.json').write_text(self.distribution.bill, encoding='utf-8')


setup(
    version=VERSION,
    distclass=Platform,
    cmdclass={'build_py': BuildWithLibrary, 'bdist_wheel': PlatformWheel},
)
