# SPDX-License-Identifier: Apache-2.0
"""Tests fsccl_torch.from_launcher(), which sets torch's variables from those of a launcher. The
tests of tests/launchers run the launchers themselves."""

import os

import fsccl_torch
import pytest

TORCH = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')
OPEN_MPI = {
    'OMPI_COMM_WORLD_RANK': '1',
    'OMPI_COMM_WORLD_SIZE': '4',
    'OMPI_COMM_WORLD_LOCAL_RANK': '1',
    'OMPI_COMM_WORLD_LOCAL_SIZE': '4',
    'PMIX_NAMESPACE': 'job@1',
    'PMIX_RANK': '1',
}
SLURM = {
    'SLURM_PROCID': '2',
    'SLURM_LOCALID': '0',
    'SLURM_NODEID': '1',
    'SLURM_JOB_ID': '17',
    'SLURM_STEP_ID': '0',
    'SLURM_STEP_NUM_TASKS': '3',
    'SLURM_STEP_NUM_NODES': '2',
    'SLURM_STEP_TASKS_PER_NODE': '2,1',
    'SLURM_STEP_NODELIST': 'rack[1-2]n[07-09]',
}


@pytest.fixture
def launched(monkeypatch):
    """Returns a function of some variables. It sets these variables and no others, calls
    from_launcher(), and returns its result and torch's variables."""
    for name in os.environ:
        if name in TORCH or name.startswith(('OMPI_', 'PMI', 'SLURM_')):
            monkeypatch.delenv(name)

    def call(variables):
        with pytest.MonkeyPatch.context() as patch:
            for name in TORCH:  # so that monkeypatch restores them
                patch.setenv(name, '')
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            place = fsccl_torch.from_launcher()
            return place, [os.environ.get(name) for name in TORCH]

    return call


def test_all_are_set(launched):
    place, (*others, port) = launched(OPEN_MPI)
    assert place == (1, 4)
    assert others == ['1', '4', '1', '4', '127.0.0.1']
    assert 10000 <= int(port) < 30000
    assert launched(OPEN_MPI)[1][-1] == port
    assert launched({**OPEN_MPI, 'PMIX_NAMESPACE': 'job@2'})[1][-1] != port


def test_several_hosts_meet_at_the_first(launched):
    place, (*others, _) = launched(SLURM)
    assert place == (2, 3)
    assert others == ['2', '3', '0', '1', 'rack1n07']


def test_what_is_set_stays(launched):
    _, found = launched({**SLURM, 'MASTER_ADDR': 'node', 'MASTER_PORT': '29500'})
    assert found == ['2', '3', '0', '1', 'node', '29500']
    torchrun = dict(zip(TORCH, ('0', '2', '0', '2', 'node', '29500')))
    assert launched({**SLURM, **torchrun, 'TORCHELASTIC_RUN_ID': 'job'}) == (
        (0, 2),
        list(torchrun.values()),
    )
    with pytest.raises(
        fsccl_torch.FscclError, match='FSCCL_LAUNCHER=slurm or FSCCL_LAUNCHER=torchrun'
    ):
        launched({**SLURM, **torchrun})  # torchrun has not set them: they may be left over


def test_no_launcher_or_a_wrong_one(launched):
    with pytest.raises(fsccl_torch.FscclError, match='no launcher has started this process'):
        launched({})
    with pytest.raises(
        fsccl_torch.FscclError, match='OMPI_COMM_WORLD_RANK=4: not a number from 0 to 3'
    ):
        launched({**OPEN_MPI, 'OMPI_COMM_WORLD_RANK': '4'})
