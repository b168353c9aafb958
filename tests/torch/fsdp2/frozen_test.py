# SPDX-License-Identifier: Apache-2.0
"""Tests that frozen parameters are gathered once for all micro-batches of a step, and that the
numbers are those of stock FSDP2 over gloo, whatever is written to the parameters in between."""

import gc
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from variants import BFLOAT16, accumulate, adam, enable, fused, keeping_all, registry, shard, system

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import ranks as ranks_

WIDTH, LAYERS, MICRO_BATCHES = 160, 3, 4
VARIANTS, variant = registry()


def kept():
    """Returns how many gathers of frozen parameters moved nothing."""
    import fsccl_torch

    return fsccl_torch.stats().get('unshard_kept', 0)


def with_frozen_weights():
    """Some groups have a frozen part, as with adapters, and one is frozen as a whole."""
    model = system.Model()
    for block in model.blocks:
        block.attention.requires_grad_(False)
        block.feed_forward.requires_grad_(False)
    model.blocks[1].requires_grad_(False)
    return model


def accumulated(rank, ranks, synchronised, **options):
    keeping_all()
    return accumulate(rank, ranks, synchronised, with_frozen_weights, steps=3, **options)


@variant
def accumulated_with_sync(rank, ranks):
    return accumulated(rank, ranks, True)


@variant
def accumulated_without_sync(rank, ranks):
    return accumulated(rank, ranks, False)


@variant
def accumulated_in_bfloat16(rank, ranks):
    return accumulated(rank, ranks, True, mp_policy=BFLOAT16)


@variant
def accumulated_beside_kept_parameters(rank, ranks):
    return accumulated(rank, ranks, True, keep_bytes=1 << 30)


def taught(rank, ranks, follow):
    """A frozen teacher follows its student after each step."""
    keeping_all()
    student = shard(system.Model())
    teacher = shard(system.Model(99).requires_grad_(False), reshard_after_forward=True)
    optimizer, losses = adam(student), []
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(2):
            tokens, _ = system.batch(2 * step + micro, rank, ranks)
            with torch.no_grad():
                target = teacher(tokens)
            loss = nn.functional.mse_loss(student(tokens), target)
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        teacher.reshard()  # FSDP2 before 2.8 leaves the parameters of the root whole after forward
        follow(teacher, student)
    return system.result(student, losses)


@variant
def teacher_that_is_written_to(rank, ranks):
    def follow(teacher, student):
        with torch.no_grad():
            for mine, other in zip(teacher.parameters(), student.parameters()):
                mine.lerp_(other, 0.5)

    return taught(rank, ranks, follow)


@variant
def teacher_that_is_written_to_through_data(rank, ranks):
    """A write through .data does not increment the version of the teacher's parameters. Only the
    versions of the student's parameters change."""

    def follow(teacher, student):
        for mine, other in zip(teacher.parameters(), student.parameters()):
            mine.to_local().data.mul_(0.5).add_(other.to_local().data, alpha=0.5)

    return taught(rank, ranks, follow)


@variant
def teacher_that_is_loaded(rank, ranks):
    return taught(
        rank, ranks, lambda teacher, student: teacher.load_state_dict(student.state_dict())
    )


@variant
def thawed_and_frozen_again(rank, ranks):
    keeping_all()
    model = shard(with_frozen_weights())
    losses = []
    for frozen in (True, False, True):
        for parameter in model.blocks[1].parameters():
            parameter.requires_grad_(not frozen)
        optimizer = system.new_optimizer(model)
        losses += system.train(model, optimizer, rank, ranks, range(2))
    return system.result(model, losses)


@variant
def written_in_forward(rank, ranks):
    """A frozen embedding that writes to the rows that it looks up: what a rank writes to the kept
    slot stays its own, and is dropped at reshard."""
    keeping_all()
    model = with_frozen_weights()
    model.embedding.max_norm = 0.9
    model.embedding.requires_grad_(False)
    for block in (*model.blocks, model.embedding):
        fully_shard(block)
    model = enable(fully_shard(model))
    return system.result(model, system.train(model, adam(model), rank, ranks))


@variant
def nothing_is_trained(rank, ranks):
    """If nothing is trained, no gradient shows where a step ends, so parameters are gathered for
    each forward."""
    keeping_all()
    model = shard(system.Model().requires_grad_(False), reshard_after_forward=True)
    losses = []
    for step in range(3):
        with torch.no_grad():
            losses.append(system.loss_of(model, *system.batch(step, rank, ranks)).item())
        model.reshard()  # as above
        for parameter in model.parameters():
            parameter.to_local().data.mul_(0.9)
    return system.result(model, losses)


@pytest.mark.parametrize('name', VARIANTS)
def test_numbers_are_those_of_stock_fsdp2(name):
    def run(rank, ranks):
        result = VARIANTS[name](rank, ranks)
        if fused():
            assert (kept() > 0) == (name != 'nothing_is_trained'), kept()
        return result

    system.compare(run, reference=False)


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.adapter = nn.Linear(WIDTH, 2, bias=False)

    def forward(self, x):
        return self.base(x) + self.adapter(x).sum(-1, keepdim=True)


def written_in_a_step(keep_frozen_bytes):
    """Returns the bytes that this rank's cores write in a step of some micro-batches."""
    import fsccl_torch.fsdp2

    torch.manual_seed(0)
    model = nn.Sequential(*[Adapted() for _ in range(LAYERS)])
    for layer in model:
        fully_shard(layer)
    fsccl_torch.fsdp2.enable(fully_shard(model), keep_frozen_bytes=keep_frozen_bytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backend, written = dist.group.WORLD._get_backend(torch.device('cpu')), []
    for _ in range(4):
        before = backend.counters()['bytes_written']
        for _ in range(MICRO_BATCHES):
            model(torch.ones(2, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        written.append(backend.counters()['bytes_written'] - before)
    assert written[2] == written[3], written
    del model, layer, optimizer
    gc.collect()  # so that the next model's units take the place of these
    return written[-1]


def test_gathered_once_for_all_micro_batches():
    with ranks_.Ranks(2) as ranks:
        kept_, gathered = (ranks.run(written_in_a_step, limit) for limit in (None, 0))
        half = ranks.run(written_in_a_step, WIDTH * WIDTH * 4)  # enough to keep one layer
    shard_ = WIDTH * WIDTH * 4 // 2
    # Without keeping, a layer is gathered twice a micro-batch, in forward and in backward. Keeping
    # saves all of these gathers but one.
    saved = 2 * MICRO_BATCHES - 1
    for rank in range(2):
        assert gathered[rank] - kept_[rank] == LAYERS * saved * shard_, (gathered, kept_)
        assert gathered[rank] - half[rank] == saved * shard_, (gathered, half)
