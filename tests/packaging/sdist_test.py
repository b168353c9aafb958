# SPDX-License-Identifier: Apache-2.0
"""Tests that the source distribution of fsccl-torch is complete: built outside of a clone, it makes
the same wheel as the clone."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = 'import setuptools.build_meta as made; print(made.build_{}({!r}))'


def build(what, source, target):
    """Returns the file that setuptools makes of the package in `source`."""
    target.mkdir()
    done = subprocess.run(
        [sys.executable, '-c', BUILD.format(what, str(target))],
        cwd=source,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (made,) = target.iterdir()
    return made


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_source_distribution_makes_the_wheel(tmp_path):
    clone = tmp_path / 'clone'
    # A copy, because setuptools builds beside the sources, where another test may build.
    shutil.copytree(
        ROOT / 'bindings/torch',
        clone / 'bindings/torch',
        ignore=shutil.ignore_patterns('build', '*.egg-info', '*.so*', '__pycache__'),
    )
    (clone / 'include').symlink_to(ROOT / 'include')
    shutil.copy(ROOT / 'bindings/wheels.py', clone / 'bindings/wheels.py')
    source = build('sdist', clone / 'bindings/torch', tmp_path / 'source')
    wheel = build('wheel', clone / 'bindings/torch', tmp_path / 'wheel')
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / 'away', filter='data')
    (package,) = (tmp_path / 'away').iterdir()
    again = build('wheel', package, tmp_path / 'again')
    assert again.name == wheel.name
    assert contents(again) == contents(wheel)
