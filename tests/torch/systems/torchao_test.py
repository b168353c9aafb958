# SPDX-License-Identifier: Apache-2.0
"""Tests training in float8 with torchao under FSDP2. Matrix products are emulated on a CPU, but the
same bytes travel as on GPUs."""

import functools

import pytest
import system
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torchao.float8 import (
    Float8LinearConfig,
    convert_to_float8_training,
    precompute_float8_dynamic_scale_for_fsdp,
)
from torchao.float8.float8_linear import Float8Linear

WAYS = {
    # Weights are gathered in float32.
    'gathered_whole': {},
    # Rows of weights are cast before they are gathered, with one scale for the rows of all ranks.
    'gathered_in_float8': {'enable_fsdp_float8_all_gather': True},
}


def train(rank, ranks, way, enable):
    model, options = system.Model(), WAYS[way]
    convert_to_float8_training(
        model,
        config=Float8LinearConfig(emulate=True, **options),
        module_filter_fn=lambda module, name: 'feed_forward' in name and module.out_features == 24,
    )
    assert sum(isinstance(module, Float8Linear) for module in model.modules()) == 2
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    if enable and dist.get_backend() == 'fsccl':
        import fsccl_torch.fsdp2

        fsccl_torch.fsdp2.enable(model)
    optimizer, losses = system.new_optimizer(model), []
    for step in range(system.STEPS):
        losses += system.train(model, optimizer, rank, ranks, [step])
        if options:
            precompute_float8_dynamic_scale_for_fsdp(model)
    return system.result(model, losses)


@pytest.mark.parametrize('enable', [False, True], ids=['plain', 'fused'])
@pytest.mark.parametrize('way', WAYS)
def test_float8(way, enable):
    system.compare(functools.partial(train, way=way, enable=enable), reference=False)
