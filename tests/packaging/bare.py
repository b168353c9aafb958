# SPDX-License-Identifier: Apache-2.0
"""Helpers that the tests of packages run: commands, and a virtual environment as a user may have
it."""

import os
import re
import subprocess
import sys
from pathlib import Path


def environment(**changes):
    """Returns this environment without what chooses the package and the library of the tree."""
    own = ('PYTHONPATH', 'FSCCL_TORCH_LIBRARY', 'PYTEST_ADDOPTS', 'LD_PRELOAD')
    return {
        **{name: value for name, value in os.environ.items() if name not in own},
        **{name: str(value) for name, value in changes.items()},
    }


def run(*command, **changes):
    return subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,
        env=environment(**changes),
    )


def succeed(*command, **changes):
    done = run(*command, **changes)
    assert done.returncode == 0, done.stdout
    return done.stdout


class Environment:
    """A virtual environment with the packages of this one, except FSCCL's, and with a PATH without
    a compiler."""

    def __init__(self, folder):
        subprocess.run([sys.executable, '-m', 'venv', folder / 'venv'], check=True)
        self.bin = folder / 'venv/bin'
        self.python = self.bin / 'python'
        (self.site,) = folder.glob('venv/lib/python3*/site-packages')
        others = folder / 'others'
        others.mkdir()
        for path in sys.path:
            if path.endswith('site-packages'):
                for entry in Path(path).iterdir():
                    if (
                        not re.match(r'(__editable__\.?)?fsccl|pip|.*\.pth', entry.name)
                        and not (others / entry.name).exists()
                    ):
                        (others / entry.name).symlink_to(entry)
        (self.site / 'others.pth').write_text(f'{others}\n')
        self.pip('uninstall', '-y', 'setuptools')  # the one of venv may be older than torch's

    def files(self):
        return sorted(
            str(path)
            for top in (self.site, self.bin)
            for path in top.rglob('*')
            if 'pip' not in path.parts and path.name != '__pycache__'
        )

    def run(self, *words, **changes):
        return run(self.python, *words, **{'PATH': self.bin, 'OMP_NUM_THREADS': 1, **changes})

    def pip(self, *words):
        done = self.run('-m', 'pip', '--disable-pip-version-check', *words)
        assert done.returncode == 0, done.stdout
        return done.stdout
