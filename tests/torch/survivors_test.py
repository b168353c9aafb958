# SPDX-License-Identifier: Apache-2.0
"""Tests training that goes on after ranks have died: which ranks are left, their group, and the
redistribution of their state."""

import importlib
import os
import signal
from pathlib import Path

import fsccl_torch
import pytest
import ranks as ranks_
import torch
import torch.distributed as dist
from fsccl_torch.base import BACKEND
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

fails = ranks_.fails
NEWER = tuple(int(number) for number in torch.__version__.split('.')[:2]) >= (2, 8)
MANY = [(4, 0)]
EXAMPLE = Path(__file__).resolve().parents[2] / 'examples/torch/hsdp_survives.py'


# FSDP2 of 2.7 refuses HSDP on a CPU, over gloo as well.
SURVIVED = [
    pytest.param(4, 3, id='four'),
    *[pytest.param(ranks, victim, id=f'many-{ranks}-{victim}') for ranks, victim in MANY],
]


@pytest.mark.parametrize('ranks, victim', SURVIVED if NEWER else SURVIVED[:1])
def test_hsdp_goes_on_as_if_the_rank_had_left_in_peace(ranks, victim, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    example = importlib.import_module(EXAMPLE.stem)
    common = [f'--ranks={ranks}', f'--victim={victim}', '--steps=7']
    if not NEWER:
        with pytest.raises(SystemExit, match='exit codes'):
            example.main(common)
        return
    found = example.main(common)
    if BACKEND:  # before torch 2.14 a living rank cannot be left out
        assert found == example.main([*common, '--without-death'])


def shrinks():
    rank = dist.get_rank()
    group = dist.new_group([1, 3])
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        fails(
            lambda: dist.recv(torch.zeros(4), 3, group=group), dist.DistBackendError
        )  # the sender does not send any more, because it shrinks the group
    elif rank == 3:
        fails(dist.barrier, dist.DistBackendError)
    else:
        fails(dist.barrier, dist.DistBackendError)
    while fsccl_torch.peer_states()[2] != 'dead':
        pass
    assert [state for peer, state in enumerate(fsccl_torch.peer_states()) if peer != 2] == [
        'alive'
    ] * 3
    left = fsccl_torch.shrink()
    assert (
        left is dist.group.WORLD
        and dist.get_world_size() == 3
        and dist.get_rank() == rank - (rank > 2)
    )
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    assert total == 0 + 1 + 3
    rows = init_device_mesh('cpu', (3,)).get_group()
    dist.all_reduce(total, group=rows)
    assert total == 3 * 4
    fails(lambda: fsccl_torch.redistribute([torch.ones(1)], [torch.ones(1)]), TypeError)


def test_shrink_finds_out_who_is_left():
    with ranks_.Ranks(4) as ranks:
        ranks.run(shrinks, survivors=[0, 1, 3])


def shrinks_by_name():
    rank = dist.get_rank()
    dist.barrier()
    if rank == 1:
        return
    dist.shrink_group([1])  # no rank has died
    assert dist.get_world_size() == 2 and dist.get_rank() == rank // 2
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    fails(dist.barrier, dist.DistBackendError)
    text, _ = fails(lambda: dist.shrink_group([0]), RuntimeError)
    assert 'Current rank 0' in text, text
    dist.shrink_group([1])
    total = torch.ones(3)
    dist.all_reduce(total)
    assert dist.get_world_size() == 1 and total.sum() == 3


def refused_by_torch():
    fails(lambda: dist.shrink_group([1]), TypeError)
    dist.barrier()


def test_shrink_group_of_torch():
    with ranks_.Ranks(3) as ranks:
        if BACKEND:
            ranks.run(shrinks_by_name, survivors=[0])
        elif hasattr(dist, 'shrink_group'):
            ranks.run(refused_by_torch)


def dealt_out_anew():
    rank = dist.get_rank()
    hsdp = init_device_mesh('cpu', (2, 2))
    whole = init_device_mesh('cpu', (4,))
    places = [Replicate(), Shard(0)]
    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int64):
        full = [
            torch.arange(7 * 3).reshape(7, 3).to(dtype),
            torch.arange(5).to(dtype),
            torch.zeros(2, 2, dtype=dtype),
        ]
        old = [distribute_tensor(tensor, hsdp, places) for tensor in full]
        new = [
            distribute_tensor(torch.zeros_like(tensor) - 1, whole, [Shard(0)]) for tensor in full
        ]
        assert fsccl_torch.redistribute(old, new, version=6, limit_bytes=1000) == 6
        assert all(
            torch.equal(tensor.full_tensor(), expected) for tensor, expected in zip(new, full)
        )
        back = [distribute_tensor(torch.zeros_like(tensor) - 1, hsdp, places) for tensor in full]
        fsccl_torch.redistribute(new, back)
        assert all(
            torch.equal(tensor.to_local(), before.to_local()) for tensor, before in zip(back, old)
        )
    # Shard 1 exists only in version 4, and shard 0 only in version 5.
    text, _ = fails(
        lambda: fsccl_torch.redistribute(old, new, version=5 - rank % 2), fsccl_torch.FscclError
    )
    assert 'no rank holds shard 1 of 2 of version 5' in text, text
    for given, kind, word in [
        ((old, new[:2]), ValueError, 'same list'),
        ((old[:1], new[1:2]), ValueError, 'both are the same'),
        ((old[:1] + new[1:2], new[:2]), ValueError, 'call it for each kind'),
    ]:
        text, _ = fails(lambda: fsccl_torch.redistribute(*given), kind)
        assert word in text, text
    columns = DTensor.from_local(torch.ones(2, 2), whole, [Shard(1)])
    text, _ = fails(lambda: fsccl_torch.redistribute([columns], [columns]), ValueError)
    assert 'Shard(0)' in text, text


def test_tensors_are_dealt_out_anew():
    with ranks_.Ranks(4) as ranks:
        ranks.run(dealt_out_anew)
