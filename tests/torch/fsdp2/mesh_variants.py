# SPDX-License-Identifier: Apache-2.0
"""Uses of FSDP2 on meshes of two dimensions, and on parts of one, each as in variants.py. With 4
ranks the terms of a sum still have one order, because ranks are summed two by two."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from variants import BFLOAT16, adam, plain_training, shard, system, without_slots_for_gradients


def tensor_parallel(rank, ranks):
    """TP x FSDP: the parameters are DTensors before they are sharded."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh('cpu', (ranks // 2, 2), mesh_dim_names=('data', 'tensor'))
    model = system.Model()
    for block in model.blocks:
        parallelize_module(
            block,
            mesh['tensor'],
            {
                'feed_forward.1': ColwiseParallel(use_local_output=False),
                'feed_forward.3': RowwiseParallel(),
            },
        )
    model = shard(model, mesh=mesh['data'])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
    losses = system.train(model, optimizer, mesh['data'].get_local_rank(), ranks // 2)
    return system.result(model, losses)


def replicated(ranks):
    return init_device_mesh('cpu', (2, ranks // 2), mesh_dim_names=('replicate', 'shard'))


def hsdp(rank, ranks):
    return plain_training(rank, ranks, mesh=replicated(ranks))


def hsdp_cut_along_the_second_dimension(rank, ranks):
    return plain_training(
        rank,
        ranks,
        mesh=replicated(ranks),
        shard_placement_fn=lambda p: Shard(1) if p.dim() > 1 and p.size(1) % 2 == 0 else Shard(0),
    )


def hsdp_in_bfloat16_with_a_divisor(rank, ranks):
    model = shard(system.Model(), mesh=replicated(ranks), mp_policy=BFLOAT16)
    for module in (model, *model.blocks):
        module.set_gradient_divide_factor(8.0)
        module.set_force_sum_reduction_for_comms(True)
    return system.result(model, system.train(model, adam(model), rank, ranks))


def hsdp_accumulated_before_the_all_reduce(rank, ranks):
    """The first of every two backward passes reduces within the replica only."""
    model = shard(system.Model(), mesh=replicated(ranks))
    optimizer, losses = adam(model), []
    for step in range(4):
        model.set_requires_all_reduce(step % 2 == 1)
        loss = system.loss_of(model, *system.batch(step, rank, ranks))
        loss.backward()
        losses.append(loss.item())
        if step % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
    return system.result(model, losses)


def hsdp_with_gradients_too_large_for_slots(rank, ranks):
    without_slots_for_gradients()
    return plain_training(rank, ranks, mesh=replicated(ranks))


def resharded_to_two(rank, ranks):
    return plain_training(rank, ranks, reshard_after_forward=2)
