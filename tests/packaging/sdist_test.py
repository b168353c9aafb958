# SPDX-License-Identifier: Apache-2.0
"""Tests that the source distribution of fsccl-torch is complete: built outside of a clone, it makes
the same wheel as the clone, and that setup.py refuses libraries which are not there."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = 'import setuptools.build_meta as made; print(made.build_{}({!r}))'


def run(what, source, target, **variables):
    target.mkdir()
    return subprocess.run(
        [sys.executable, '-c', BUILD.format(what, str(target))],
        cwd=source,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )


def clone_of(package, clone):
    """Copies a package, because setuptools builds beside the sources, where another test may
    build."""
    shutil.copytree(
        ROOT / 'bindings' / package,
        clone / 'bindings' / package,
        ignore=shutil.ignore_patterns('build', '*.egg-info', '*.so*', '__pycache__'),
    )
    (clone / 'include').symlink_to(ROOT / 'include')
    shutil.copy(ROOT / 'bindings/wheels.py', clone / 'bindings/wheels.py')
    return clone / 'bindings' / package


def build(what, source, target):
    """Returns the file that setuptools makes of the package in `source`."""
    done = run(what, source, target)
    assert done.returncode == 0, done.stdout
    (made,) = target.iterdir()
    return made


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_source_distribution_makes_the_wheel(tmp_path):
    package = clone_of('torch', tmp_path / 'clone')
    source = build('sdist', package, tmp_path / 'source')
    wheel = build('wheel', package, tmp_path / 'wheel')
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / 'away', filter='data')
    (package,) = (tmp_path / 'away').iterdir()
    again = build('wheel', package, tmp_path / 'again')
    assert again.name == wheel.name
    assert contents(again) == contents(wheel)


@pytest.mark.parametrize(
    ('package', 'variable'),
    [
        ('torch', 'FSCCL_TORCH_LIBRARY'),
        ('jax', 'FSCCL_JAX_LIBRARIES'),
        ('python', 'FSCCL_WHEEL_PREFIX'),
    ],
)
def test_a_path_that_leads_elsewhere_from_the_folder_of_the_package(tmp_path, package, variable):
    folder = clone_of(package, tmp_path / 'clone')
    done = run('wheel', folder, tmp_path / 'relative', **{variable: 'build/libraries'})
    assert done.returncode and (
        f'build/libraries (looked up in {folder}, where pip builds: give an absolute path)'
        in done.stdout
    ), done.stdout
    done = run('wheel', folder, tmp_path / 'absolute', **{variable: str(tmp_path / 'libraries')})
    assert done.returncode and f'{tmp_path}/libraries' in done.stdout, done.stdout
    assert 'looked up' not in done.stdout, done.stdout
