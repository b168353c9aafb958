# SPDX-License-Identifier: Apache-2.0
"""Parts that the setup.py of the packages in this folder share: their version, the range of `fsccl`
that they work with, programs that build, and wheels that serve every Python of a platform."""

import re
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import SetupError

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / 'include/fsccl/fsccl.h'
DEBIAN = (
    'apt install g++ pkg-config libfmt-dev libsodium-dev libhwy-dev libhwloc-dev nlohmann-json3-dev'
)


def version(package):
    """Returns the version of all packages, as text. A source distribution carries this file and
    says its version itself."""
    carried = Path(__file__).resolve().parent / 'PKG-INFO'
    if carried.is_file():
        return re.search(r'^Version: (.+)$', carried.read_text(encoding='utf-8'), re.M)[1]
    if not HEADER.is_file():
        raise SetupError(
            f'{HEADER} is missing: {package} is built in a clone of FSCCL, '
            f'pip install ./bindings/{package}'
        )
    numbers = re.findall(
        r'#define FSCCL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)', HEADER.read_text(encoding='utf-8')
    )
    return '.'.join(numbers)


def requirement(of):
    """The package `fsccl` that a binding of version `of` works with. Before 1.0 a minor version may
    change the API; from 1.0 on it only grows within a major version."""
    major, minor, _ = of.split('.')
    end = f'0.{int(minor) + 1}' if major == '0' else str(int(major) + 1)
    return f'fsccl>={major}.{minor},<{end}'


def looked_up(path):
    """Returns how an error names a path that is missing. pip builds in the package's folder,
    where a path that the user gave from another folder leads elsewhere."""
    if Path(path).is_absolute():
        return str(path)
    return f'{path} (looked up in {Path.cwd()}, where pip builds: give an absolute path)'


def run(*command, needs):
    """Returns what the program prints. An error says what building needs."""
    words = [str(word) for word in command]
    try:
        result = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    except OSError as error:
        raise SetupError(f'{words[0]} cannot be run: {error}. {needs}') from error
    if result.returncode != 0:
        tail = '\n'.join(result.stdout.splitlines()[-25:])
        raise SetupError(f'{tail}\n\n{" ".join(words)}: exit status {result.returncode}. {needs}')
    return result.stdout


class FreshBuild(build_py):
    """Begins without the modules of an earlier build, which would be packed again."""

    def run(self):
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def target(self, folder, package):
        """Returns where the package's files go."""
        return (folder if self.editable_mode else Path(self.build_lib)) / package


class WholeSource(sdist):
    """A source distribution from which the package can be built: this file lies beside setup.py."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        shutil.copy(__file__, base_dir)


class Platform(Distribution):
    """The package holds a library of one platform, though no extension module."""

    def has_ext_modules(self):
        return True


class PlatformWheel(bdist_wheel):
    """One wheel serves every Python of the platform."""

    def get_tag(self):
        return 'py3', 'none', super().get_tag()[2]
