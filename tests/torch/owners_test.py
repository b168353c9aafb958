# SPDX-License-Identifier: Apache-2.0
"""Tests whole tensors and their owners (fsccl_torch.Owners), and the Muon of
examples/torch/muon.py."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, fails
from torch import nn

EXAMPLES = Path(__file__).resolve().parents[2] / 'examples/torch'
# Matrices as in the layers of a transformer, and then another matrix, a vector, a tensor of three
# dimensions, and a matrix of one row.
SHAPES = [shape for _ in range(6) for shape in ((48, 16), (16, 16), (40, 16), (16, 40))] + [
    (7, 5),
    (13,),
    (3, 4, 5),
    (1, 9),
]


@pytest.fixture(scope='module', params=[2, 3])
def ranks(request):
    with Ranks(request.param) as ranks:
        yield ranks


def tensors(rank):
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def deals_out():
    import fsccl_torch

    owners = fsccl_torch.Owners(tensors(0))
    return owners.owner, owners.owned, owners.largest, owners.bound


def test_every_tensor_has_one_owner_and_ranks_own_alike(ranks):
    found = ranks.run(deals_out)
    sizes = [torch.Size(shape).numel() for shape in SHAPES]
    for rank, (owner, owned, largest, bound) in enumerate(found):
        assert owner == found[0][0] and len(owner) == len(SHAPES)
        assert owned == [i for i, of in enumerate(owner) if of == rank]
        loads = [
            sum(size for size, of in zip(sizes, owner) if of == other)
            for other in range(ranks.size)
        ]
        assert max(loads) == largest and bound <= largest <= 1.1 * bound, (loads, bound)


def reduces_and_shares():
    import fsccl_torch

    rank, size = dist.get_rank(), dist.get_world_size()
    owners = fsccl_torch.Owners(tensors(0))
    mine, before = tensors(rank), fsccl_torch.stats().get('reduce to owners', 0)
    owners.reduce(mine)
    assert fsccl_torch.stats()['reduce to owners'] == before + 1
    everybody = [tensors(other) for other in range(size)]
    for i, found in enumerate(mine):
        mean = torch.stack([of_rank[i] for of_rank in everybody]).sum(0) / size
        expected = mean if i in owners.owned else everybody[rank][i]
        torch.testing.assert_close(found, expected)
    owners.share(mine)
    for i, found in enumerate(mine):
        mean = torch.stack([of_rank[i] for of_rank in everybody]).sum(0) / size
        torch.testing.assert_close(found, mean)
    everywhere = [torch.empty_like(mine[0]) for _ in range(size)]
    dist.all_gather(everywhere, mine[0])
    assert all(torch.equal(one, mine[0]) for one in everywhere)


def test_reduces_to_owners_and_shares(ranks):
    ranks.run(reduces_and_shares)


def collects_and_distributes():
    import fsccl_torch

    rank, size = dist.get_rank(), dist.get_world_size()
    wholes = tensors(7)
    owners = fsccl_torch.Owners(wholes)

    def rows(whole):
        parts = whole.chunk(size)
        return parts[rank] if rank < len(parts) else whole[:0]

    parts = [rows(whole) for whole in wholes]
    collected = owners.collect(parts)
    assert list(collected) == owners.owned
    for i, whole in collected.items():
        assert torch.equal(whole, wholes[i])
    back = owners.distribute({i: 2 * whole for i, whole in collected.items()}, parts[0])
    for part, found in zip(parts, back):
        assert torch.equal(found, 2 * part)


def test_collects_shards_and_distributes_them(ranks):
    ranks.run(collects_and_distributes)


def refuses():
    import fsccl_torch

    owners = fsccl_torch.Owners(tensors(0))
    texts = [
        fails(lambda: owners.reduce(tensors(0)[:-1]), ValueError)[0],
        fails(lambda: owners.share([t.transpose(0, -1) for t in tensors(0)]), ValueError)[0],
        fails(lambda: owners.collect(tensors(0)), ValueError)[0],
        fails(lambda: fsccl_torch.Owners([torch.empty(0, 3)]), ValueError)[0],
    ]
    gloo = dist.new_group(backend='gloo')
    other = fsccl_torch.Owners(tensors(0), gloo)
    return [*texts, fails(lambda: other.reduce(tensors(0)), ValueError)[0]]


def test_refuses_what_it_cannot_do(ranks):
    for words, text in zip(
        ('shapes', 'shapes', 'elements', 'no rows', 'backend="fsccl"'), ranks.run(refuses)[0]
    ):
        assert words in text, text


def run_example(*arguments, processes):
    done = subprocess.run(
        [
            sys.executable,
            '-m',
            'torch.distributed.run',
            '--standalone',
            f'--nproc-per-node={processes}',
            EXAMPLES / 'muon.py',
            '--steps=6',
            '--width=32',
            '--layers=2',
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={name: value for name, value in os.environ.items() if name != 'PYTEST_ADDOPTS'},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [float(loss) for loss in re.findall(r'loss ([\d.]+)', done.stdout)]


def alone(ranks):
    """Runs the same training in this process alone, with whole matrices and the mean over all
    ranks' data, and returns its result."""
    sys.path.insert(0, str(EXAMPLES))
    import fsdp2_train
    import muon

    torch.manual_seed(0)
    model = fsdp2_train.Transformer(32, 2, heads=4, tokens=64)
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    adam, momenta, losses = torch.optim.AdamW(others, lr=1e-3), {}, []
    for step in range(6):
        model.zero_grad()
        total = 0
        for rank in range(ranks):
            text, following = fsdp2_train.sample(step, rank, 4, 64)
            loss = nn.functional.cross_entropy(model(text).flatten(0, 1), following.flatten())
            (loss / ranks).backward()
            total += loss.item()
        losses.append(total / ranks)
        with torch.no_grad():
            for matrix in matrices:
                held = momenta.setdefault(matrix, torch.zeros_like(matrix))
                held.mul_(0.95).add_(matrix.grad)
                update = muon.orthogonal(matrix.grad.add(held, alpha=0.95))
                scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                matrix.sub_(update, alpha=0.02 * scale)
        adam.step()
    return losses


def test_muon_trains_as_one_process_does():
    fused = run_example('--fused', processes=2)
    assert fused == run_example(processes=2)
    assert fused[-1] < fused[0] - 0.2
    torch.testing.assert_close(torch.tensor(fused), torch.tensor(alone(2)), rtol=0, atol=2e-3)
