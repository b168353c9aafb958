# SPDX-License-Identifier: Apache-2.0
"""Tests distributed checkpoints over fsccl: the saved state is loaded, and training goes on with
the same bits."""

import tempfile

import system
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard


def new_model(seed=system.SEED):
    model = system.Model(seed)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, system.new_optimizer(model)


def shared_folder():
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    return folder[0]


def save_and_resume(rank, ranks):
    model, optimizer = new_model()
    first = system.train(model, optimizer, rank, ranks, range(2))
    folder = shared_folder()
    states = dict(zip(('model', 'optimizer'), get_state_dict(model, optimizer)))
    checkpoint.save(states, checkpoint_id=folder)
    expected = system.result(model, system.train(model, optimizer, rank, ranks, range(2, 4)))

    model, optimizer = new_model(system.SEED + 1)
    states = dict(zip(('model', 'optimizer'), get_state_dict(model, optimizer)))
    checkpoint.load(states, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=states['model'], optim_state_dict=states['optimizer']
    )
    resumed = system.result(model, system.train(model, optimizer, rank, ranks, range(2, 4)))
    torch.testing.assert_close(resumed, expected, rtol=0, atol=0)
    return {**resumed, 'losses': first + resumed['losses']}


def broadcast_from_rank_0(rank, ranks):
    """Rank 0 alone has the weights; all ranks take their shards of them."""
    model, optimizer = new_model(system.SEED + 1)
    state = system.Model().state_dict() if rank == 0 else {}
    set_model_state_dict(
        model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    )
    losses = system.train(model, optimizer, rank, ranks)
    full = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    found = system.result(model, losses)
    if rank == 0:
        torch.testing.assert_close(full, found['parameters'], rtol=0, atol=0)
    return found


def test_save_and_resume():
    system.compare(save_and_resume)


def test_broadcast_from_rank_0():
    system.compare(broadcast_from_rank_0)
