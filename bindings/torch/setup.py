# SPDX-License-Identifier: Apache-2.0
"""fsccl_torch is pure Python and takes its library from the package fsccl, so that a process has
one libfsccl whatever uses it.

FSCCL_TORCH_LIBRARY names a libfsccl.so that is built already, by an absolute path, since pip builds
in this folder: the package then carries it, as it is, and does not depend on fsccl.
"""

import os
import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.errors import SetupError

FOLDER = Path(__file__).resolve().parent
# beside this file in a source distribution
sys.path.insert(0, str(FOLDER if (FOLDER / 'wheels.py').is_file() else FOLDER.parent))
import wheels  # noqa: E402

VERSION = wheels.version('torch')
CARRIED = os.environ.get('FSCCL_TORCH_LIBRARY')


def dependencies():
    """torch without a version, so that pip never replaces the torch that is there: the package
    itself says which versions it works with."""
    return ['torch'] if CARRIED else ['torch', wheels.requirement(VERSION)]


class BuildWithLibrary(wheels.FreshBuild):
    def run(self):
        if CARRIED and not Path(CARRIED).is_file():
            raise SetupError(
                f'FSCCL_TORCH_LIBRARY is {wheels.looked_up(CARRIED)}, which is no file'
            )
        super().run()
        target = self.target(FOLDER, 'fsccl_torch')
        for old in target.glob('*.so*'):
            old.unlink()
        if CARRIED:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(CARRIED, target / 'libfsccl.so')


class MaybePlatform(Distribution):
    """With a library the package is of one platform, though it has no extension module."""

    def has_ext_modules(self):
        return bool(CARRIED)


class AnyPython(bdist_wheel):
    """One wheel serves every Python, and without a library every platform."""

    def get_tag(self):
        return 'py3', 'none', super().get_tag()[2] if CARRIED else 'any'


setup(
    version=VERSION,
    install_requires=dependencies(),
    distclass=MaybePlatform,
    cmdclass={
        'build_py': BuildWithLibrary,
        'bdist_wheel': AnyPython,
        'sdist': wheels.WholeSource,
    },
)
