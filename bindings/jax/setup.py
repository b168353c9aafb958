# SPDX-License-Identifier: Apache-2.0
"""Puts libfsccl_jax.so and libfsccl_mpi.so into the package, built from the sources of this
repository. libfsccl itself is that of the package fsccl, so that a process has one whatever uses it.

FSCCL_JAX_LIBRARIES lists folders, by absolute paths that are separated by colons, that have the
libraries already: they are carried as they are. If a folder has libfsccl.so.0, that is carried as
well, and the package does not depend on fsccl.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.errors import SetupError

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))
import wheels  # noqa: E402

NEEDS = (
    'libfsccl_jax is built with g++ 12 or clang 14 or newer, pkg-config, and the development files '
    'of libfmt, libsodium, Highway, hwloc and nlohmann-json. On Debian and Ubuntu: '
    f'{wheels.DEBIAN}. Or let FSCCL_JAX_LIBRARIES list the folders of libraries that are built '
    'already.'
)
VERSION = wheels.version('jax')
LIBRARIES = ('libfsccl_jax.so', 'libfsccl_mpi.so')
LISTED = [Path(name) for name in os.environ.get('FSCCL_JAX_LIBRARIES', '').split(':') if name]


def found(name, folders):
    """The library in the first of the folders that has it, or None."""
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def dependencies():
    """jax without a version, so that pip never replaces the JAX that is there: the package itself
    says which versions it works with."""
    carried = found('libfsccl.so.0', LISTED)
    return ['jax'] if carried else ['jax', wheels.requirement(VERSION)]


def build(folder):
    """Builds the libraries. They look for libfsccl in the package fsccl beside their own. Returns
    the folders that they are in."""
    settings = ('--buildtype=release', '-Dprograms=disabled', '-Dtests=false', '-Dwerror=false')
    beside = '-Dcpp_link_args=-Wl,-rpath,$ORIGIN/../fsccl/lib'
    wheels.run('meson', 'setup', folder, wheels.ROOT, *settings, beside, needs=NEEDS)
    made = [folder / 'bindings/jax', folder / 'bindings/mpi']
    targets = [
        str((place / name).relative_to(folder)) for place, name in zip(made, LIBRARIES, strict=True)
    ]
    wheels.run('ninja', '-C', folder, *targets, needs=NEEDS)
    return made


def carry(folders, target):
    for name in LIBRARIES:
        library = found(name, folders)
        if library is None:
            raise SetupError(
                f'{name} is not in {", ".join(map(wheels.looked_up, folders))}: build FSCCL there '
                'with `ninja`, or unset FSCCL_JAX_LIBRARIES, and it is built now'
            )
        shutil.copy(library, target / name)
    if library := found('libfsccl.so.0', LISTED):
        shutil.copy(library, target / library.name)


class BuildWithLibraries(wheels.FreshBuild):
    def run(self):
        super().run()
        target = self.target(FOLDER, 'fsccl_jax')
        target.mkdir(parents=True, exist_ok=True)
        for old in target.glob('*.so*'):
            old.unlink()
        if LISTED:
            carry(LISTED, target)
        else:
            with tempfile.TemporaryDirectory() as folder:
                carry(build(Path(folder)), target)


setup(
    version=VERSION,
    install_requires=dependencies(),
    distclass=wheels.Platform,
    cmdclass={'build_py': BuildWithLibraries, 'bdist_wheel': wheels.PlatformWheel},
)
