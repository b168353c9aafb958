# SPDX-License-Identifier: Apache-2.0
"""Tests process groups: parts of others, meshes, names with several backends, the debug wrapper."""

import datetime
import itertools

import backend_test
import pytest
import ranks as ranks_
import torch
import torch.distributed as dist
from fsccl_torch.base import BACKEND
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

CPU = torch.device('cpu')
two, four = backend_test.two, backend_test.four  # fixtures


def subgroups():
    rank = dist.get_rank()
    for members in ([0], [1, 3], [0, 2, 3], [0, 1, 2, 3]):
        group = dist.new_group(members)
        if rank in members:
            tensor = torch.tensor([2.0**rank])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == sum(2.0**member for member in members)
            dist.broadcast(tensor.fill_(rank), members[-1], group=group)
            assert tensor.item() == members[-1]
            dist.destroy_process_group(group)
    apart = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True)
    dist.barrier(apart)


def without_the_store():
    """Members of a new group find each other through the default group, without its store, so ranks
    that are not members need not take part."""
    from fsccl_torch import backend as module

    connect, module.connect = module.connect, None
    try:
        rank = dist.get_rank()
        groups = [dist.new_group(members) for members in ([2, 3], [0, 1], [3, 1])]
        for _ in range(2):
            groups.append(dist.new_group([rank % 2, rank % 2 + 2], use_local_synchronization=True))
        for group in groups:
            if group != dist.GroupMember.NON_GROUP_MEMBER:
                tensor = torch.tensor([2.0**rank])
                dist.all_reduce(tensor, group=group)
                assert tensor.item() == sum(
                    2.0**member for member in dist.get_process_group_ranks(group)
                )
                dist.destroy_process_group(group)
    finally:
        module.connect = connect


def mesh():
    rank = dist.get_rank()
    grid = init_device_mesh('cpu', (2, 2), mesh_dim_names=('replicate', 'shard'))
    for name, expected in (('replicate', rank % 2 + rank % 2 + 2), ('shard', rank // 2 * 4 + 1)):
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=grid[name].get_group())
        assert tensor.item() == expected, (name, tensor)
    flat = grid._flatten('all')
    assert flat.size() == 4
    whole = distribute_tensor(torch.arange(8.0), grid, [Replicate(), Shard(0)])
    assert whole.to_local().tolist() == list(range(rank % 2 * 4, rank % 2 * 4 + 4))
    assert whole.full_tensor().tolist() == list(range(8))


def splits():
    rank = dist.get_rank()
    part = dist.split_group(split_ranks=[[0, 3], [2, 1]])
    assert (part.size(), part.rank()) == (2, {0: 0, 3: 1, 2: 0, 1: 1}[rank])
    gathered = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(gathered, torch.tensor([float(rank)]), group=part)
    assert [int(one) for one in gathered] == ([0, 3] if rank in (0, 3) else [2, 1])
    again = dist.split_group(part, split_ranks=[[0], [1]])
    assert again.size() == 1
    # A rank that is in no part gets an error that says so. The others get their group.
    if rank == 3:
        text, _ = ranks_.fails(
            lambda: dist.split_group(split_ranks=[[0, 1], [2]]), NotImplementedError
        )
        assert 'in no part' in text
    else:
        dist.barrier(dist.split_group(split_ranks=[[0, 1], [2]]))
    dist.barrier()


def splits_the_group():
    """Does what torch.distributed.split_group calls on an accelerator, in versions that refuse it
    without one."""
    rank = dist.get_rank()
    part = dist.group.WORLD.split_group(
        [0, 3] if rank in (0, 3) else [2, 1], None, None, 'part', 'half'
    )
    assert (part.size(), part.rank()) == (2, {0: 0, 3: 1, 2: 0, 1: 1}[rank])
    gathered = [torch.zeros(1) for _ in range(2)]
    part.allgather([gathered], [torch.tensor([float(rank)])]).wait()
    assert [int(one) for one in gathered] == ([0, 3] if rank in (0, 3) else [2, 1])
    pair = dist.group.WORLD.split_group([0, 1], None, None, 'pair', 'without others')
    assert (pair is None) == (rank > 1)
    text, _ = ranks_.fails(lambda: dist.split_group(split_ranks=[[0, 1], [2, 3]]), RuntimeError)
    assert 'No device associated' in text


@pytest.mark.parametrize(
    'case',
    [subgroups, without_the_store, mesh, splits if BACKEND else splits_the_group],
    ids=lambda case: case.__name__,
)
def test_groups(four, case):
    four.run(case)


def as_torch_calls_a_group():
    """Makes the calls of a process group without options, or with a root or an operator in place of
    them."""
    rank, world = dist.get_rank(), dist.group.WORLD
    world.allreduce([tensor := torch.full((3,), rank + 1.0)]).wait()
    assert tensor.tolist() == [3.0] * 3
    world.allreduce([tensor := torch.full((3,), rank + 1.0)], dist.ReduceOp.MAX).wait()
    assert tensor.tolist() == [2.0] * 3
    world.broadcast([tensor := torch.full((3,), float(rank))], opts=root_of(1)).wait()
    assert tensor.tolist() == [1.0] * 3
    world.allgather(
        [gathered := [torch.zeros(1), torch.zeros(1)]], [torch.tensor([float(rank)])]
    ).wait()
    assert [one.item() for one in gathered] == [0, 1]
    world.barrier().wait()
    assert world._get_backend(CPU).name() == 'fsccl' and world.group_name == '0'
    assert CPU in world._device_types and (world.rank(), world.size()) == (rank, 2)


def root_of(rank):
    options = dist.BroadcastOptions()
    options.rootRank = rank
    return options


def test_calls_of_a_group(two):
    two.run(as_torch_calls_a_group)


def anew(store, name, level, case):
    """Runs `case` in a process group with another name or debug level, and then makes one as
    before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for number, (backend_name, debug, then) in enumerate(
        [(name, level, case), ('fsccl', 'OFF', dist.barrier)]
    ):
        dist.destroy_process_group()
        dist.set_debug_level(getattr(dist.DebugLevel, debug))
        dist.init_process_group(
            backend_name,
            init_method=f'file://{store}{number}',
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=20),
        )
        then()


def beside_gloo():
    group = dist.new_group(backend='fsccl')
    assert backend_test.backend(group).name() == 'fsccl'
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [2] * 3


def test_a_group_of_a_default_group_of_gloo():
    with ranks_.Ranks(2, backend='gloo') as started:
        started.run(beside_gloo)


@pytest.mark.parametrize('name', ['cpu:fsccl', 'cpu:fsccl,cuda:gloo', 'FSCCL'])
def test_names(two, tmp_path, name):
    two.run(anew, str(tmp_path / 'store'), name, 'OFF', backend_test.counted)


def carried_by_gloo():
    """If a map of devices names gloo for tensors of the host, gloo carries them, in the default
    group and in others. Then the map names fsccl again."""
    import fsccl_torch

    before = fsccl_torch.stats()
    for group in (None, dist.new_group([0, 1])):
        dist.all_reduce(tensor := torch.full((3,), dist.get_rank() + 1.0), group=group)
        dist.all_gather_single(gathered := torch.empty(6), tensor, group=group)
        assert gathered.tolist() == [3.0] * 6
        assert backend_test.backend(group).name() == 'gloo'
    assert fsccl_torch.stats() == before
    dist.destroy_process_group(group)


@pytest.mark.parametrize('name', ['cpu:gloo,cuda:fsccl', 'cuda:fsccl,cpu:gloo'])
def test_other_backends_beside_it(two, tmp_path, name):
    two.run(anew, str(tmp_path / 'store'), name, 'OFF', carried_by_gloo)


def test_debug_wrapper(two, tmp_path):
    two.run(anew, str(tmp_path / 'store'), 'fsccl', 'DETAIL', wrapped)


def wrapped():
    import collectives_test

    wrapped_here = 'Wrapper' in type(backend_test.backend()).__name__
    assert wrapped_here == BACKEND  # older versions wrap no process group that is written in Python
    for dtype, form in itertools.product((torch.float32, torch.bool), ('plain', 'transposed')):
        collectives_test.move(dtype, form)
        collectives_test.exchange(dtype, form)
    for name in ('SUM', 'AVG', 'MAX'):
        collectives_test.reduce(torch.float32, name, 'plain')
    collectives_test.uneven()
    collectives_test.objects()
    backend_test.custom_communication()
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
    model(torch.ones(2, 3)).sum().backward()
