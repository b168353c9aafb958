# SPDX-License-Identifier: Apache-2.0
"""Tests PyTorch/XLA's FSDP over FSCCL (fsccl_torch.xla), in an environment with torch_xla 2.9 that
xla.py makes. torch_xla's own collectives are no reference, because on CPUs they stay within a
process."""

import functools
import multiprocessing
import os
import re
import signal
import tempfile
import time
from pathlib import Path

# Half of the time of a test is compilation.
os.environ.update(
    PJRT_DEVICE='CPU', CPU_NUM_DEVICES='1', XLA_FLAGS='--xla_backend_optimization_level=0'
)

import pytest
import system
import torch
import torch.distributed as dist

system.CONTEXT = multiprocessing.get_context('forkserver')
system.CONTEXT.set_forkserver_preload(['torch_xla', 'fsccl_torch'])


def wrapped(**options):
    """Returns the model with its blocks, embedding and head as modules of their own, on XLA's
    device."""
    from fsccl_torch import xla

    model = system.Model()
    for index, block in enumerate(model.blocks):
        model.blocks[index] = xla.FullyShardedDataParallel(block, **options)
    return xla.FullyShardedDataParallel(model, **options)


def whole_parameters(model):
    """Returns the parameters that torch_xla makes of the checkpoints of all ranks."""
    import torch_xla
    from torch_xla.distributed.fsdp.state_dict_utils import consolidate_sharded_state_dicts

    torch_xla.sync()
    mine = {name: value.cpu() for name, value in model.state_dict().items()}
    shards = [None] * dist.get_world_size()
    dist.all_gather_object(shards, mine)
    return dict(consolidate_sharded_state_dicts(shards, model.get_shard_metadata()))


def trained(model, rank, ranks, accumulate=1, clip=None):
    """Trains as system.train() does; a step ends with torch_xla's sync()."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    optimizer, losses, closures, norms = system.new_optimizer(model), [], [], []
    for step in range(system.STEPS):
        optimizer.zero_grad()
        xm.add_step_closure(closures.append, (step,))
        tokens, targets = (part.to(torch_xla.device()) for part in system.batch(step, rank, ranks))
        for index in range(accumulate):
            last = index == accumulate - 1
            with model.no_sync() if not last else open(os.devnull):
                loss = system.loss_of(model, tokens, targets) / accumulate
                loss.backward()
        if clip is not None:
            norms.append(model.clip_grad_norm_(clip))
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item() * accumulate)
    assert closures == list(range(system.STEPS))  # each ran once, at the program's own sync()
    assert all(norm.item() > clip for norm in norms)
    return {'losses': losses, 'parameters': whole_parameters(model)}


def flat(rank, ranks):
    return trained(wrapped(flatten_parameters=True), rank, ranks)


def by_parameter(rank, ranks):
    return trained(wrapped(), rank, ranks)


def coalesced(rank, ranks):
    options = {'shard_param_on_dim_0': True, 'coalesce_all_gather_ops': True}
    return trained(wrapped(**options, reduce_scatter_bucket_size_mb=0), rank, ranks)


def in_bfloat16(rank, ranks):
    return trained(wrapped(flatten_parameters=True, compute_dtype=torch.bfloat16), rank, ranks)


def checkpointed(rank, ranks):
    """Activations are computed again in backward."""
    from fsccl_torch import xla
    from torch_xla.distributed.fsdp import checkpoint_module

    model = system.Model()
    for index, block in enumerate(model.blocks):
        block = checkpoint_module(block)
        model.blocks[index] = xla.FullyShardedDataParallel(block, flatten_parameters=True)
    return trained(xla.FullyShardedDataParallel(model, flatten_parameters=True), rank, ranks)


def accumulated_and_clipped(rank, ranks):
    return trained(wrapped(flatten_parameters=True), rank, ranks, accumulate=2, clip=1e-3)


def wrapped_by_policy(rank, ranks):
    """torch_xla wraps the blocks, which use the group of the whole model."""
    from fsccl_torch import xla
    from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy

    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={system.Block})
    group = dist.new_group(list(range(ranks)))
    model = xla.FullyShardedDataParallel(
        system.Model(), auto_wrap_policy=policy, process_group=group, flatten_parameters=True
    )
    assert sum(isinstance(m, xla.FullyShardedDataParallel) for m in model.modules()) == 3
    return trained(model, rank, ranks)


@pytest.mark.parametrize('form', [flat, by_parameter, checkpointed, wrapped_by_policy])
def test_two_ranks(form):
    system.compare(form)


@pytest.mark.parametrize('form', [coalesced, in_bfloat16, accumulated_and_clipped])
def test_two_ranks_in_other_ways(form):
    system.compare(form, reference=form is coalesced)


@pytest.mark.parametrize('ranks', [3, 4])
def test_more_ranks(ranks):
    system.compare(flat, ranks)


def killed(folder, rank, ranks):
    """Rank 1 ends itself in the third step, and the others print what they see."""
    import torch_xla

    model, at = wrapped(flatten_parameters=True), Path(folder, 'killed')
    optimizer = system.new_optimizer(model)
    try:
        for step in range(100):
            optimizer.zero_grad()
            batch = [part.to(torch_xla.device()) for part in system.batch(step, rank, ranks)]
            loss = system.loss_of(model, *batch)
            if step == 2 and rank == 1:
                at.write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
    except Exception as error:
        took = time.time() - float(at.read_text())
        Path(folder, 'seen').write_text(f'{took} {error}')
    os._exit(3)


def test_a_killed_rank_is_named(tmp_path):
    with pytest.raises(AssertionError, match='exit codes'):
        system.run(functools.partial(killed, tmp_path), 'fsccl', 2, tmp_path / 'ranks')
    took, words = (tmp_path / 'seen').read_text().split(' ', 1)
    assert re.search(r'rank 1 .*died', words), words
    assert float(took) < 1


def refusing(_rank, _ranks):
    from fsccl_torch import xla

    for options, words in (
        ({'sharding_groups': [[0, 1]]}, r'sharding_groups is \[\[0, 1\]\]: the ranks are those of'),
        ({'sharding_world_size': 2}, 'sharding_world_size is 2: the ranks are those of'),
        ({'process_group': dist.new_group([1 - dist.get_rank()])}, 'is not in process_group'),
    ):
        with pytest.raises(ValueError, match=words):
            xla.FullyShardedDataParallel(torch.nn.Linear(2, 2), **options)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor


def test_other_groups_are_refused():
    with tempfile.TemporaryDirectory() as folder:
        system.run(refusing, 'fsccl', 2, Path(folder) / 'ranks')


def test_without_a_process_group():
    from fsccl_torch import xla

    with pytest.raises(RuntimeError, match=r'there is no process group: call torch.distributed'):
        xla.FullyShardedDataParallel(torch.nn.Linear(2, 2))
