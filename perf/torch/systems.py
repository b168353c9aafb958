# SPDX-License-Identifier: Apache-2.0
"""Times a step of training under each of PyTorch's sharding systems, over gloo and over FSCCL in
turn in the same processes.

  torchrun --standalone --nproc-per-node 2 perf/torch/systems.py [SYSTEM ...]
  torchrun --standalone --nproc-per-node 4 perf/torch/systems.py HSDP

The script prints a row for each system: the median time of a step over both in ms, and the median
ratio of steps that followed each other. The model is that of examples/torch/fsdp2_train.py, or
Llama of transformers for the systems that say so, as large as --width and --layers say. With 2
ranks the losses must be equal bit for bit.
"""

import argparse
import importlib.util
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / 'examples/torch'))
import fsccl_torch.ddp
import fsccl_torch.fsdp2
from fsdp2_train import CHARACTERS, Block, Transformer, sample


class Llama(nn.Module):
    """Llama of transformers with random weights, in the form of Transformer."""

    def __init__(self, width, layers, heads, tokens):
        from transformers import LlamaConfig, LlamaForCausalLM

        super().__init__()
        config = LlamaConfig(
            vocab_size=CHARACTERS,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=tokens,
        )
        self.model = LlamaForCausalLM(config)
        self.blocks = self.model.model.layers

    def forward(self, text):
        return self.model(input_ids=text, use_cache=False).logits


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp2(model, group, _backend):
    return shard(model, DeviceMesh.from_group(group, 'cpu'))


def fused(train):
    def system(model, group, backend):
        model = train(model, group, backend)
        return fsccl_torch.fsdp2.enable(model) if backend == 'fsccl' else model

    return system


def hsdp(model, _group, backend):
    """Shards the model over half of the ranks, with two replicas."""
    ranks = torch.arange(dist.get_world_size()).view(2, -1)
    groups = []
    for rows in (ranks.T, ranks):
        made = [dist.new_group(row.tolist(), backend=backend) for row in rows]
        groups.append(next(group for group, row in zip(made, rows) if dist.get_rank() in row))
    return shard(
        model,
        DeviceMesh.from_group(groups, 'cpu', mesh=ranks, mesh_dim_names=('replicate', 'shard')),
    )


def fsdp1(strategy):
    def system(model, group, _backend):
        return FullyShardedDataParallel(
            model,
            process_group=group,
            sharding_strategy=strategy,
            device_id=torch.device('cpu'),
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            use_orig_params=True,
        )

    return system


def ddp(model, group, _backend):
    return DistributedDataParallel(model, process_group=group)


def ddp_in_two_phases(model, group, backend):
    model = ddp(model, group, backend)
    if backend == 'fsccl':
        model.register_comm_hook(group, fsccl_torch.ddp.reduce_scatter_all_gather_hook)
    return model


class Gather(nn.Module):
    """Turns a sharded parameter into the whole one. Its gradient is the mean over the ranks."""

    def forward(self, parameter):
        return parameter.redistribute(placements=[Replicate()]).to_local(
            grad_placements=[Partial('avg')]
        )


def functional(model, group, backend):
    mesh = DeviceMesh.from_group(
        group, 'cpu', mesh_dim_names=(backend,)
    )  # DTensor takes meshes with the same name for one
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(
                name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)]))
            )
            parametrize.register_parametrization(module, name, Gather(), unsafe=True)
    return model


SYSTEMS = {
    'FSDP2': fsdp2,
    'FSDP2 fused': fused(fsdp2),
    'FSDP1': fsdp1(ShardingStrategy.FULL_SHARD),
    'FSDP1 grad-op': fsdp1(ShardingStrategy.SHARD_GRAD_OP),
    'DDP': ddp,
    'DDP two phases': ddp_in_two_phases,
    'SimpleFSDP': functional,
    'HSDP': hsdp,
    'HSDP fused': fused(hsdp),
    'Llama FSDP2': fsdp2,
    'Llama fused': fused(fsdp2),
    'Llama DDP': ddp,
}


def measure(name, groups, arguments):
    system, kind = SYSTEMS[name], Llama if name.startswith('Llama') else Transformer
    rank, runs = dist.get_rank(), {}
    for backend, group in groups.items():
        torch.manual_seed(0)
        model = system(kind(arguments.width, arguments.layers, 8, arguments.tokens), group, backend)
        runs[backend] = (model, torch.optim.SGD(model.parameters(), lr=1e-3), [], [])
    for step in range(arguments.warmup + arguments.steps):
        text, following = sample(step, rank, 1, arguments.tokens)
        for model, optimizer, times, losses in runs.values():
            dist.barrier()
            begin = time.perf_counter()
            loss = nn.functional.cross_entropy(model(text).flatten(0, 1), following.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - begin)
            losses.append(loss.item())
    times = {backend: times[arguments.warmup :] for backend, (_, _, times, _) in runs.items()}
    assert dist.get_world_size() > 2 or len({tuple(losses) for *_, losses in runs.values()}) == 1, (
        'losses differ'
    )
    ratio = statistics.median(gloo / ours for gloo, ours in zip(times['gloo'], times['fsccl']))
    return [1e3 * statistics.median(times[backend]) for backend in groups] + [ratio]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('systems', nargs='*', metavar='SYSTEM', help=', '.join(SYSTEMS))
    for name, default in {'width': 512, 'layers': 8, 'tokens': 64, 'steps': 8, 'warmup': 2}.items():
        parser.add_argument(f'--{name}', type=int, default=default)
    arguments = parser.parse_args()
    unknown = set(arguments.systems) - set(SYSTEMS)
    if unknown:
        parser.error(f'no system {", ".join(sorted(unknown))}: choose from {", ".join(SYSTEMS)}')
    dist.init_process_group('gloo')
    ranks = dist.get_world_size()
    groups = {'gloo': dist.group.WORLD, 'fsccl': dist.new_group(backend='fsccl')}
    chosen = arguments.systems or [
        name
        for name in SYSTEMS
        if (ranks >= 4 or not name.startswith('HSDP'))
        and (importlib.util.find_spec('transformers') or not name.startswith('Llama'))
    ]
    if dist.get_rank() == 0:
        print(
            f'torch {torch.__version__}, {ranks} ranks\n{"system":16} {"gloo ms":>9} '
            f'{"fsccl ms":>9} {"ratio":>6}'
        )
    for name in chosen:
        gloo, ours, ratio = measure(name, groups, arguments)
        if dist.get_rank() == 0:
            print(f'{name:16} {gloo:9.1f} {ours:9.1f} {ratio:6.2f}', flush=True)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
