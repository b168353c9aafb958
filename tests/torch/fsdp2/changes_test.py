# SPDX-License-Identifier: Apache-2.0
"""Tests that fsccl_torch.fsdp2.enable() follows what programs change between passes, and what only
some ranks do: the numbers are those of stock FSDP2 over gloo, bit for bit on two ranks."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import variants
from torch import nn
from torch.distributed.fsdp import fully_shard
from variants import BFLOAT16, adam, enable, fused, keeping_all, registry, shard, system

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import ranks as ranks_

TRAINED, variant = registry()
# FSDP2 of torch 2.11 and older cannot do these itself.
NEW = {'ranks_use_other_layers_without_sync', 'made_and_evaluated_in_inference_mode'}
IS_NEW = tuple(int(number) for number in torch.__version__.split('.')[:2]) > (2, 11)


def in_small_buckets():
    """Makes a bucket of each parameter, as large layers have several."""
    if fused():
        from fsccl_torch import fsdp2_group

        fsdp2_group._BUCKET_BYTES = 1


@variant
def turned_to_another_type(rank, ranks):
    model = shard(system.Model(), mp_policy=BFLOAT16)
    losses = system.train(model, adam(model), rank, ranks)
    model.to(torch.bfloat16)
    with torch.no_grad():
        losses.append(system.loss_of(model, *system.batch(9, rank, ranks)).item())
    return system.result(model, losses)


class Either(nn.Module):
    """Has two layers, of which a pass uses one or both."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.uses = 'first', 'second'

    def forward(self, x):
        return sum(getattr(self, name)(x) for name in self.uses)


@variant
def ranks_use_other_layers_without_sync(rank, ranks):
    in_small_buckets()
    model = enable(fully_shard(Either(), mp_policy=BFLOAT16))
    optimizer, losses = system.new_optimizer(model), []
    for step in range(3):
        optimizer.zero_grad()
        for synchronised in (False, True):
            model.set_requires_gradient_sync(synchronised)
            model.uses = ('first', 'second') if synchronised else (('first', 'second')[rank],)
            loss = model(torch.full((3, 16), 0.1 * (rank + step))).float().square().mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return system.result(model, losses)


@variant
def two_backwards_of_a_root_without_parameters(rank, ranks):
    torch.manual_seed(3)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])
    for layer in model:
        fully_shard(layer)
    enable(fully_shard(model))
    model.set_is_last_backward(False)
    losses = []
    for step in range(2):
        model(torch.full((3, 8), 0.1 * (rank + step))).square().mean().backward()
        losses += [parameter.grad.to_local().sum().item() for parameter in model.parameters()]
    return system.result(model, losses)


class Turning(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.turns = nn.Parameter(
            torch.polar(torch.ones(10), torch.arange(10.0)), requires_grad=False
        )
        self.scale = nn.Linear(20, 20)

    def forward(self, x):
        turned = torch.view_as_complex(self.scale(x).unflatten(-1, (10, 2))) * self.turns
        return torch.view_as_real(turned).flatten(-2)


@variant
def frozen_complex_numbers(rank, ranks):
    model = Turning()
    fully_shard(model.scale)
    model = enable(fully_shard(model))
    optimizer, losses = system.new_optimizer(model), []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.full((3, 20), 0.1 * (rank + step))).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return system.result(model, losses)


@variant
def made_and_evaluated_in_inference_mode(rank, ranks):
    with torch.inference_mode():
        model = shard(system.Model())
        losses = [
            system.loss_of(model, *system.batch(step, rank, ranks)).item() for step in range(3)
        ]
        return system.result(model, losses)


@variant
def weights_written_by_a_broadcast(rank, ranks):
    """Frozen weights that stay gathered are replaced while nothing is trained."""
    import fsccl_torch

    keeping_all()
    model = system.Model()
    model.blocks.requires_grad_(False)
    model, losses = shard(model, reshard_after_forward=True), []
    for step in range(3):
        with torch.no_grad():
            losses.append(system.loss_of(model, *system.batch(step, rank, ranks)).item())
            model.reshard()
            # Shards of the same size: rank 0's go to all ranks.
            mine = [p.to_local() for p in model.blocks.parameters() if p.shape[0] % ranks == 0]
            if fused():
                fsccl_torch.broadcast_coalesced(mine)
            else:
                for shard_ in mine:
                    dist.broadcast(shard_, 0)
    return system.result(model, losses)


@pytest.mark.parametrize('name', [name for name in TRAINED if IS_NEW or name not in NEW])
def test_numbers_are_those_of_stock_fsdp2(name):
    system.compare(TRAINED[name], reference=False)


@pytest.mark.parametrize(
    'name',
    [
        'plain',
        'bfloat16',
        'thawed_later',
        'sometimes_unused',
        'accumulated_without_sync_in_bfloat16',
        'checkpointed_activations',
    ],
)
def test_numbers_do_not_depend_on_buckets(name):
    def run(rank, ranks):
        in_small_buckets()
        return variants.VARIANTS[name](rank, ranks)

    system.compare(run, reference=False)


def reports_of_a_thawed_group():
    from fsccl_torch import fsdp2

    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).requires_grad_(False)
    model[1].requires_grad_(True)
    for layer in model:
        fully_shard(layer)
    enable(fully_shard(model))
    for _ in range(2):
        model(torch.ones(3, 8)).sum().backward()
        model[0].requires_grad_(True)
    with pytest.raises(ValueError, match='before the first forward'):
        fsdp2.enable(model, keep_bytes=5)
    fsdp2.enable(model)
    return [str(line) for line in fsdp2.report(model)]


def test_a_thawed_group_is_reduced_by_a_unit_and_options_stay():
    with ranks_.Ranks(2) as ranks:
        for lines in ranks.run(reports_of_a_thawed_group):
            assert lines == ["'0': fused", "'1': fused"], lines


def reports_of_one_rank():
    from fsccl_torch import fsdp2

    model = enable(fully_shard(nn.Linear(8, 8)))
    model(torch.ones(3, 8)).sum().backward()
    return [str(line) for line in fsdp2.report(model)]


def test_one_rank_is_told_why_nothing_is_fused():
    with ranks_.Ranks(1) as ranks:
        assert 'has one rank' in ranks.run(reports_of_one_rank)[0][0]


def owned_complex_numbers():
    import fsccl_torch

    rank = dist.get_rank()
    tensors = [torch.full((3, 5), complex(rank + 1, i), dtype=torch.complex64) for i in range(4)]
    owners = fsccl_torch.Owners(tensors)
    owners.reduce(tensors, average=False)
    owners.share(tensors)
    return [(tensor == complex(3, 2 * i)).all().item() for i, tensor in enumerate(tensors)]


def test_owners_move_both_parts_of_complex_numbers():
    with ranks_.Ranks(2) as ranks:
        assert ranks.run(owned_complex_numbers) == [[True] * 4] * 2
