# SPDX-License-Identifier: Apache-2.0
"""Tests that FSDP1, FSDP2 and HSDP train over fsccl as over gloo."""

import pytest
import system
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.utils import _sync_params_and_buffers

NEWER = not torch.__version__.startswith(
    '2.7.'
)  # FSDP2 of 2.7 has HSDP on GPUs alone, and cannot be told to sum


def shard(model, **options):
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def fsdp2(rank, ranks):
    model = shard(system.Model())
    return system.result(model, system.train(model, system.new_optimizer(model), rank, ranks))


def fsdp2_in_bfloat16(rank, ranks):
    model = shard(
        system.Model(),
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )
    return system.result(model, system.train(model, system.new_optimizer(model), rank, ranks))


def fsdp2_with_clipping_and_a_divisor(rank, ranks):
    """FSDP2 turns the program's divisor into PREMUL_SUM, which gloo refuses. Over gloo FSDP2 sums,
    and divides in a pass of its own."""
    model = shard(system.Model())
    model.set_gradient_divide_factor(4.0)
    model.set_force_sum_reduction_for_comms(dist.get_backend() == 'gloo')
    optimizer = system.new_optimizer(model)
    norms = []
    optimizer.register_step_pre_hook(
        lambda *_: norms.append(
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor()
        )
    )
    losses = system.train(model, optimizer, rank, ranks)
    return {**system.result(model, losses), 'norms': norms}


def hsdp(rank, ranks):
    """There are two replicas of two shards. The replicas begin with different weights, and the test
    makes them equal by a broadcast, as DDP does."""
    mesh = init_device_mesh('cpu', (2, ranks // 2), mesh_dim_names=('replicate', 'shard'))
    model = shard(system.Model(system.SEED + mesh['replicate'].get_local_rank()), mesh=mesh)
    with torch.no_grad():
        local = [parameter.to_local() for parameter in model.parameters()]
        _sync_params_and_buffers(
            mesh['replicate'].get_group(), [tensor for tensor in local if tensor.numel()], 4096, 0
        )
    return system.result(model, system.train(model, system.new_optimizer(model), rank, ranks))


def fsdp1(rank, ranks, strategy):
    model = FullyShardedDataParallel(
        system.Model(),
        auto_wrap_policy=ModuleWrapPolicy({system.Block}),
        sharding_strategy=strategy,
        device_id=torch.device('cpu'),
        use_orig_params=True,
    )
    losses = system.train(model, system.new_optimizer(model), rank, ranks)
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        parameters = {
            name.replace('_fsdp_wrapped_module.', ''): whole.detach().clone()
            for name, whole in model.named_parameters()
        }
    return {'losses': losses, 'parameters': parameters}


def fsdp1_full(rank, ranks):
    return fsdp1(rank, ranks, ShardingStrategy.FULL_SHARD)


def fsdp1_grad_op(rank, ranks):
    return fsdp1(rank, ranks, ShardingStrategy.SHARD_GRAD_OP)


@pytest.mark.parametrize('train', [fsdp2, fsdp1_full, fsdp1_grad_op])
def test_two_ranks(train):
    system.compare(train)


@pytest.mark.parametrize('train', [fsdp2_in_bfloat16, *[fsdp2_with_clipping_and_a_divisor] * NEWER])
def test_two_ranks_otherwise_than_one_process(train):
    system.compare(train, reference=False)


@pytest.mark.parametrize('train', [fsdp2, fsdp1_full, *[hsdp] * NEWER])
def test_four_ranks(train):
    system.compare(train, ranks=4)
