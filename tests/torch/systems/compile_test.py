# SPDX-License-Identifier: Apache-2.0
"""Tests torch.compile with collectives of fsccl: FSDP2 before and after compilation, and parameters
that are DTensors, which functional collectives inside the graph gather and reduce (as SimpleFSDP
does)."""

import functools

import pytest
import system
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.nn.utils import parametrize


class Gather(nn.Module):
    """Makes the whole parameter from a sharded one. The gradient is the mean over the ranks."""

    def forward(self, parameter):
        return parameter.redistribute(placements=[Replicate()]).to_local(
            grad_placements=[Partial('avg')]
        )


def shard_functionally(model, ranks):
    mesh = init_device_mesh('cpu', (ranks,))
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(
                name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)]))
            )
            parametrize.register_parametrization(module, name, Gather(), unsafe=True)
    return model


def functional(rank, ranks, compiler):
    model = shard_functionally(system.Model(), ranks)
    trained = torch.compile(model, backend=compiler, fullgraph=True) if compiler else model
    losses = system.train(trained, system.new_optimizer(model), rank, ranks)
    found = system.result(model, losses)
    names = {
        name: name.replace('parametrizations.', '').removesuffix('.original')
        for name in found['parameters']
    }
    return {
        **found,
        'parameters': {names[name]: whole for name, whole in found['parameters'].items()},
    }


def compile_then_shard(rank, ranks, compiler):
    model = system.Model()
    for block in model.blocks:
        block.compile(fullgraph=True, backend=compiler)
        fully_shard(block)
    fully_shard(model)
    return system.result(model, system.train(model, system.new_optimizer(model), rank, ranks))


def shard_then_compile(rank, ranks, compiler):
    model = system.Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return system.result(
        model,
        system.train(
            torch.compile(model, backend=compiler), system.new_optimizer(model), rank, ranks
        ),
    )


def wrap_then_compile(rank, ranks, compiler):
    """DDP broadcasts the buffers of a model outside of the graphs."""
    model = system.Model()
    model.register_buffer('steps', torch.zeros(2))
    wrapped = nn.parallel.DistributedDataParallel(model)
    losses = system.train(
        torch.compile(wrapped, backend=compiler), system.new_optimizer(model), rank, ranks
    )
    return system.result(model, losses)


def test_ddp():
    system.compare(functools.partial(wrap_then_compile, compiler='aot_eager'))


@pytest.mark.parametrize('way', [functional, compile_then_shard, shard_then_compile])
@pytest.mark.parametrize('compiler', ['aot_eager', 'inductor'])
def test_two_ranks(way, compiler):
    system.compare(functools.partial(way, compiler=compiler))


def test_functional_collectives_without_a_graph():
    system.compare(functools.partial(functional, compiler=None))
