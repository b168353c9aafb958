# SPDX-License-Identifier: Apache-2.0
"""Tests that a model on which fsccl_torch.fsdp2.enable() was called is freed with its last
reference, and so is its memory."""

import gc
import os
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import ranks as ranks_

WIDTH, MODELS = 600, 10


def resident_bytes():
    with open('/proc/self/statm') as numbers:
        return int(numbers.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def build(options):
    import fsccl_torch.fsdp2

    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(6)])
    for layer in model:
        fully_shard(layer, **options)
    return fsccl_torch.fsdp2.enable(fully_shard(model, **options), keep_bytes=1 << 20)


def lives(what, options):
    """Makes, trains and drops one model."""
    model = build(options)
    for _ in range(2):
        if what == 'unsharded':
            model[0].unshard(async_op=True)
            break
        loss = model(torch.full((2, WIDTH), 0.1 + dist.get_rank())).square().mean()
        if what == 'trained':
            loss.backward()
    return weakref.ref(model[0])


def models_come_and_go(what, options):
    backend, sizes = dist.group.WORLD._get_backend(torch.device('cpu')), []
    for number in range(MODELS):
        left = lives(what, options)
        if number % 2 == dist.get_rank():
            gc.collect()  # ranks drop what they have at different times
        dist.barrier()
        gc.collect()
        assert left() is None
        assert not [one for one in gc.get_objects() if type(one) is FSDPParam], number
        sizes.append(resident_bytes())
    used = backend.memory_stats()['live_bytes']
    one = 6 * WIDTH * WIDTH * 4
    assert used <= one, (used, one)
    assert sizes[-1] - sizes[2] < 2 * one, [
        size >> 20 for size in sizes
    ]  # if a model left memory behind, 7 models would leave 7 times as much


@pytest.fixture(scope='module')
def two():
    with ranks_.Ranks(2) as started:
        yield started


@pytest.mark.parametrize('what', ['trained', 'evaluated', 'unsharded'])
def test_models_are_freed(two, what):
    two.run(models_come_and_go, what, {}, limit=200)


def view_outlives_the_model():
    """Memory is not given to the next model while a view of it exists."""
    model = build({})
    model[0].unshard()
    weight, wanted = model[0].weight.detach(), model[0].weight.detach().clone()
    del model
    gc.collect()
    for _ in range(2):
        lives('trained', {})
        gc.collect()
    assert torch.equal(weight, wanted)
    dist.barrier()


def test_a_view_outlives_its_model(two):
    two.run(view_outlives_the_model)
