#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what FSDP2's hooks cost a processor for each unit of a step, without computation: stock
FSDP2 over gloo and over fsccl, and fsccl_torch.fsdp2.enable(), in turns.

usage: fsdp2_hooks.py [--steps N] [--units N] [--parameters N]

Two ranks train a chain of units with a few parameters of 64 elements each. The figure is the
processor time of the thread that runs a step (forward and backward), less that of the same chain
without FSDP2, divided by the units. The script prints the medians over the steps in microseconds,
and their ratio to stock FSDP2 over gloo, whose own threads do not count. The time in which a rank
sleeps does not count; the time in which it polls for the other rank does.
"""

import argparse
import datetime
import statistics
import tempfile
import time

import fsccl_torch.fsdp2
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group, _fsdp_state

STOCK = {'stock FSDP2 over gloo': 'gloo', 'stock FSDP2 over fsccl': 'fsccl'}


class Unit(nn.Module):
    """A unit in which every parameter has a gradient, and almost nothing is computed."""

    def __init__(self, parameters):
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(8, 8) for _ in range(parameters))

    def forward(self, x):
        return x + torch.stack([weight[0, 0] for weight in self.weights]).sum()


def chain(units, parameters):
    return nn.Sequential(*[Unit(parameters) for _ in range(units)])


def sharded(model, mesh, fused):
    for unit in model:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if fused:
        fsccl_torch.fsdp2.enable(model)
    return model


class Names:
    """Keeps what FSDP2's modules define, so that it can be put back for the stock models."""

    modules = (_fsdp_param_group, _fsdp_state)

    def __init__(self):
        self.known = [dict(vars(module)) for module in self.modules]

    def put_back(self):
        for module, known in zip(self.modules, self.known):
            vars(module).update(known)


def step(model):
    """Runs a step and returns the processor seconds of this thread."""
    dist.barrier()
    begin = time.thread_time()
    model(torch.zeros(())).backward()
    used = time.thread_time() - begin
    for parameter in model.parameters():
        parameter.grad = None
    return used


def measure(rank, store, options, results):
    torch.set_num_threads(1)
    dist.init_process_group(
        'gloo',
        init_method=f'file://{store}',
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=60),
    )
    meshes = {
        backend: DeviceMesh.from_group(dist.new_group(backend=backend), 'cpu')
        for backend in ('gloo', 'fsccl')
    }
    models = {'plain': (chain(options.units, options.parameters), Names())}
    for name, backend in STOCK.items():
        model = sharded(chain(options.units, options.parameters), meshes[backend], False)
        models[name] = (model, Names())
    model = sharded(chain(options.units, options.parameters), meshes['fsccl'], True)
    models['fused'] = (model, Names())
    used = {name: [] for name in models}
    for number in range(options.steps + 20):
        for name, (model, names) in models.items():
            names.put_back()
            seconds = step(model)
            if number >= 20:
                used[name].append(seconds)
    plain = statistics.median(used.pop('plain'))
    if rank == 0:
        results.put(
            {
                name: (statistics.median(seconds) - plain) / options.units * 1e6
                for name, seconds in used.items()
            }
        )
    dist.destroy_process_group()


def run(options):
    """Returns {name: microseconds of a unit}."""
    with tempfile.TemporaryDirectory() as folder:
        results = mp.get_context('spawn').SimpleQueue()
        mp.spawn(measure, (f'{folder}/store', options, results), nprocs=2)
        return results.get()


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--steps', type=int, default=1000)
    parser.add_argument('--units', type=int, default=8)
    parser.add_argument('--parameters', type=int, default=9, help='of a unit')
    return parser.parse_args(given)


def main():
    found = run(arguments())
    stock = found['stock FSDP2 over gloo']
    for name, microseconds in found.items():
        print(f'{name:<24} {microseconds:8.1f} us  {microseconds / stock:.2f}')


if __name__ == '__main__':
    main()
