# SPDX-License-Identifier: Apache-2.0
"""Builds libfsccl and the libraries for XLA from the sources of this repository and puts them into
the package, with the shared libraries that they need beyond those of every Linux system, so that
the wheel works where those are not installed.

FSCCL_JAX_LIBRARIES lists the folders, separated by colons, of libraries that are built already;
those are carried as they are.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.errors import SetupError

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
# The C and C++ runtime: jaxlib needs the C runtime from the system as well.
SYSTEM_LIBRARIES = re.compile(r'linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so')
NEEDS = (
    'libfsccl is built with g++ 12 or clang 14 or newer, pkg-config, and the development files of '
    'libfmt, libsodium, '
    'Highway, hwloc and nlohmann-json. On Debian and Ubuntu: '
    'apt install g++ pkg-config libfmt-dev libsodium-dev libhwy-dev libhwloc-dev '
    'nlohmann-json3-dev. '
    'Or let FSCCL_JAX_LIBRARIES list the folders of libraries that are built already.'
)
CARRIED = ('libfsccl.so.0', 'libfsccl_jax.so', 'libfsccl_mpi.so')


def version():
    header = ROOT / 'include/fsccl/fsccl.h'
    if not header.is_file():
        raise SetupError(
            f'{header} is missing: fsccl_jax is built in a clone of FSCCL, pip install '
            f'./bindings/jax'
        )
    numbers = re.findall(
        r'#define FSCCL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)', header.read_text(encoding='utf-8')
    )
    return '.'.join(numbers)


def run(*command):
    try:
        result = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    except OSError as error:
        raise SetupError(f'{command[0]} cannot be run: {error}. {NEEDS}') from error
    if result.returncode != 0:
        tail = '\n'.join(result.stdout.splitlines()[-25:])
        raise SetupError(f'{tail}\n\n{" ".join(command)}: exit status {result.returncode}. {NEEDS}')
    return result.stdout


def needed_libraries(library):
    """What the dynamic linker finds for the library, without what every system has."""
    for line in run('ldd', str(library)).splitlines():
        name, _, path = line.strip().partition(' => ')
        if not SYSTEM_LIBRARIES.search(name):
            yield Path(path.split(' (')[0]), name


def build_library(target):
    """Builds the libraries into the folder. They look for what they need beside themselves
    first."""
    with tempfile.TemporaryDirectory() as build:
        run(
            'meson',
            'setup',
            build,
            str(ROOT),
            '--buildtype=release',
            '-Dprograms=disabled',
            '-Dwerror=false',
            '-Dcpp_link_args=-Wl,-rpath,$ORIGIN',
        )
        run('ninja', '-C', build)
        for path, name in needed_libraries(Path(build) / 'libfsccl.so.0'):
            shutil.copy(path, target / name)
        carry([Path(build), Path(build) / 'bindings/jax', Path(build) / 'bindings/mpi'], target)


def carry(folders, target):
    """Copies each library from the first of the folders that has it. They find each other beside
    themselves."""
    for name in CARRIED:
        found = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if found is None:
            raise SetupError(
                f'{name} is not in {", ".join(map(str, folders))}: build FSCCL there with `ninja`, '
                f'or unset '
                'FSCCL_JAX_LIBRARIES, and it is built now'
            )
        shutil.copy(found, target / name)


class BuildWithLibrary(build_py):
    def run(self):
        if not self.editable_mode:
            shutil.rmtree(
                self.build_lib, ignore_errors=True
            )  # a module that is gone would be packed again
        super().run()
        target = (FOLDER if self.editable_mode else Path(self.build_lib)) / 'fsccl_jax'
        target.mkdir(parents=True, exist_ok=True)
        for old in target.glob('*.so*'):
            old.unlink()
        listed = os.environ.get('FSCCL_JAX_LIBRARIES')
        if listed:
            carry([Path(folder) for folder in listed.split(':') if folder], target)
        else:
            build_library(target)


class Platform(Distribution):
    """The package holds a library of one platform, though no extension module."""

    def has_ext_modules(self):
        return True


class PlatformWheel(bdist_wheel):
    """One wheel serves every Python of the platform."""

    def get_tag(self):
        return 'py3', 'none', super().get_tag()[2]


setup(
    version=version(),
    distclass=Platform,
    cmdclass={'build_py': BuildWithLibrary, 'bdist_wheel': PlatformWheel},
)
