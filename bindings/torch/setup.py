# SPDX-License-Identifier: Apache-2.0
"""fsccl_torch is pure Python and takes its library from the package fsccl, so that a process has
one libfsccl whatever uses it.

FSCCL_TORCH_LIBRARY names a libfsccl.so that is built already: the package then carries it, as it
is, and does not depend on fsccl.
"""

import os
import re
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.errors import SetupError

FOLDER = Path(__file__).resolve().parent
HEADER = FOLDER.parents[1] / 'include/fsccl/fsccl.h'
CARRIED = os.environ.get('FSCCL_TORCH_LIBRARY')


def version():
    if not HEADER.is_file():
        raise SetupError(
            f'{HEADER} is missing: fsccl_torch is built in a clone of FSCCL, '
            'pip install ./bindings/python ./bindings/torch'
        )
    return re.findall(
        r'#define FSCCL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)', HEADER.read_text(encoding='utf-8')
    )


def dependencies():
    """torch without a version, so that pip never replaces the torch that is there: the package
    itself says which versions it works with. Before 1.0 a minor version of fsccl may change the
    API; from 1.0 on it only grows within a major version."""
    major, minor, _ = version()
    end = f'0.{int(minor) + 1}' if major == '0' else str(int(major) + 1)
    return ['torch'] if CARRIED else ['torch', f'fsccl>={major}.{minor},<{end}']


class BuildWithLibrary(build_py):
    def run(self):
        if CARRIED and not Path(CARRIED).is_file():
            raise SetupError(f'FSCCL_TORCH_LIBRARY is {CARRIED}, which is no file')
        if not self.editable_mode:
            shutil.rmtree(
                self.build_lib, ignore_errors=True
            )  # a module that is gone would be packed again
        super().run()
        target = (FOLDER if self.editable_mode else Path(self.build_lib)) / 'fsccl_torch'
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
    version='.'.join(version()),
    install_requires=dependencies(),
    distclass=MaybePlatform,
    cmdclass={'build_py': BuildWithLibrary, 'bdist_wheel': AnyPython},
)
