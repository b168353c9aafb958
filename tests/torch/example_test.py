# SPDX-License-Identifier: Apache-2.0
"""Tests examples/torch/fsdp2_train.py under torchrun: it learns, and prints the same losses for
each backend."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / 'examples/torch/fsdp2_train.py'


def losses(*arguments, ranks=2, reference=False):
    environment = {name: value for name, value in os.environ.items() if name != 'PYTEST_ADDOPTS'}
    sums = reference and torch.__version__.startswith('2.7.')
    command = [
        sys.executable,
        '-m',
        'torch.distributed.run',
        '--standalone',
        f'--nproc-per-node={ranks}',
        *([HERE / 'systems/averaging_gloo.py'] if sums else []),
        EXAMPLE,
        '--steps=8',
        '--width=32',
        '--layers=2',
        *arguments,
    ]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=240,
        env=environment,
    )
    # A thread of Gloo that still holds a tensor when the interpreter ends aborts the process
    # (pytorch pull request 179291). So the exit code of the reference does not count.
    assert reference or done.returncode == 0, done.stdout
    found = re.findall(r'loss ([\d.]+)  norm ([\d.]+)', done.stdout)
    assert len(found) == 8, done.stdout
    return found


@pytest.fixture(scope='module')
def gloo():
    return losses('--backend=gloo', reference=True)


def test_learns(gloo):
    assert float(gloo[-1][0]) < float(gloo[0][0]) - 0.25


@pytest.mark.parametrize('more', [[], ['--fused']])
def test_losses_are_those_of_gloo(gloo, more):
    assert losses('--backend=fsccl', *more) == gloo
