# SPDX-License-Identifier: Apache-2.0
"""Tests that DDP trains over fsccl as over gloo, with its own all-reduce, and with a hook that
reduces and gathers instead."""

import pytest
import system
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def reduce_scatter_and_gather(_, bucket):
    """A communication hook: each rank reduces its part of the bucket, then all parts are
    gathered."""
    ranks, gradients = dist.get_world_size(), bucket.buffer()
    whole = torch.nn.functional.pad(gradients, (0, -len(gradients) % ranks))
    part = torch.empty(len(whole) // ranks)
    dist.reduce_scatter_tensor(part, whole)
    work = dist.all_gather_into_tensor(whole, part.div_(ranks), async_op=True)
    return work.get_future().then(lambda _: whole[: len(gradients)])


def train(rank, ranks, hook=None, **options):
    model = DistributedDataParallel(system.Model(system.SEED), **options)
    if hook:
        model.register_comm_hook(None, hook)
    return system.result(model, system.train(model, system.new_optimizer(model), rank, ranks))


def all_reduce(rank, ranks):
    return train(rank, ranks)


def small_buckets(rank, ranks):
    return train(rank, ranks, bucket_cap_mb=0.01, gradient_as_bucket_view=True)


def hook(rank, ranks):
    return train(rank, ranks, reduce_scatter_and_gather)


def weights_of_rank_0(rank, ranks):
    model = DistributedDataParallel(system.Model(system.SEED + rank))
    return system.result(model, system.train(model, system.new_optimizer(model), rank, ranks))


@pytest.mark.parametrize('way', [all_reduce, small_buckets, hook, weights_of_rank_0])
def test_two_ranks(way):
    system.compare(way)


@pytest.mark.parametrize('way', [all_reduce, hook])
def test_four_ranks(way):
    system.compare(way, ranks=4)
