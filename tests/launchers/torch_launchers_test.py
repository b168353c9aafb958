# SPDX-License-Identifier: Apache-2.0
"""Runs examples/torch/fsdp2_train.py, unchanged, under each launcher. It must have the same losses
as under torchrun."""

import os
import re
import sys

import launchers
import pytest
import slurm

EXAMPLE = launchers.ROOT / 'examples/torch/fsdp2_train.py'
SCRIPT = [EXAMPLE, '--steps=4', '--width=32', '--layers=2']
TORCHRUN = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2']


def losses(output):
    found = re.findall(r'loss ([\d.]+)  norm ([\d.]+)', output)
    assert len(found) == 4, output
    return found


@pytest.fixture(scope='module')
def expected():
    return losses(launchers.run(*TORCHRUN, *SCRIPT))


@pytest.fixture(scope='module')
def cluster():
    if missing := slurm.missing():
        pytest.skip(missing)
    with slurm.Slurm(nodes=2) as running:
        yield running


@pytest.mark.parametrize('name', launchers.ON_ONE_HOST)
def test_under(name, expected):
    command = launchers.command(name, 2)
    if not command:
        pytest.skip(launchers.missing(name))
    assert losses(launchers.run(*command, sys.executable, *SCRIPT)) == expected


def test_under_srun(cluster, expected):
    assert losses(cluster.run('srun', '-N1', '-n2', sys.executable, *SCRIPT)) == expected


def test_on_two_nodes(cluster, expected):
    """MASTER_ADDR is given, because the names of these nodes are not names of hosts. The rest
    follows from Slurm's variables."""
    assert (
        losses(cluster.run('srun', '-N2', '-n2', sys.executable, *SCRIPT, MASTER_ADDR='127.0.0.1'))
        == expected
    )


def test_torchrun_below_srun(cluster, expected):
    assert losses(cluster.run('srun', '-N1', '-n1', *TORCHRUN, *SCRIPT)) == expected
    lines = cluster.run(
        'srun', '-N1', '-n1', *TORCHRUN, '--no-python', os.environ['PLACE']
    ).splitlines()
    assert sorted(line.split()[:3] for line in lines) == [
        ['torchrun', '0', '2'],
        ['torchrun', '1', '2'],
    ]
