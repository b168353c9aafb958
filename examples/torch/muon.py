# SPDX-License-Identifier: Apache-2.0
"""Trains the transformer of fsdp2_train.py with Muon (Keller Jordan, 2024) for its matrices, sharded
by FSDP2, and prints the loss of each step.

  torchrun --standalone --nproc-per-node 2 examples/torch/muon.py [--fused]

Muon makes the momentum of a matrix orthogonal, for which it needs the whole matrix. The matrices
are dealt out whole to the ranks (fsccl_torch.Owners): each owner collects its matrices' momentum
from the shards, iterates once for all ranks, and distributes the result to the shards.
"""

import argparse

import fsccl_torch
import fsccl_torch.fsdp2
import torch
import torch.distributed as dist
from fsdp2_train import Transformer, sample
from torch import nn
from torch.distributed.fsdp import fully_shard


def orthogonal(matrix, iterations=5):
    """Returns about U V' of a matrix U S V', by the Newton-Schulz iteration of degree 5."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(iterations):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """The optimizer Muon for matrices that FSDP2 shards along dimension 0 over `group`."""

    def __init__(self, params, lr=0.02, momentum=0.95, group=None):
        super().__init__(params, {'lr': lr, 'momentum': momentum})
        self.matrices = [param for group_ in self.param_groups for param in group_['params']]
        self.owners = fsccl_torch.Owners(self.matrices, group)

    @torch.no_grad()
    def step(self):
        shards = []
        for group in self.param_groups:
            for param in group['params']:
                grad, state = param.grad.to_local(), self.state[param]
                held = state.setdefault('momentum', torch.zeros_like(grad))
                held.mul_(group['momentum']).add_(grad)
                shards.append(grad.add(held, alpha=group['momentum']))
        wholes = {i: orthogonal(whole) for i, whole in self.owners.collect(shards).items()}
        updates = iter(self.owners.distribute(wholes, shards[0]))
        for group in self.param_groups:
            for param in group['params']:
                rows, columns = param.shape
                scale = max(1.0, rows / columns) ** 0.5
                param.to_local().sub_(next(updates), alpha=group['lr'] * scale)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--backend', default='fsccl')
    parser.add_argument('--fused', action='store_true', help='fsccl_torch.fsdp2.enable(model)')
    parser.add_argument('--steps', type=int, default=20)
    parser.add_argument('--width', type=int, default=128)
    parser.add_argument('--layers', type=int, default=4)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    fsccl_torch.from_launcher()
    dist.init_process_group(arguments.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = Transformer(arguments.width, arguments.layers, heads=4, tokens=64)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    if arguments.fused:
        fsccl_torch.fsdp2.enable(model)
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    muon, adam = Muon(matrices), torch.optim.AdamW(others, lr=1e-3)
    if rank == 0:
        owners = muon.owners
        print(
            f'{len(matrices)} matrices over {ranks} ranks, of which one owns {owners.largest} '
            f'elements at most, and {owners.bound} cannot be less'
        )

    for step in range(arguments.steps):
        text, following = sample(step, rank, 4, 64)
        loss = nn.functional.cross_entropy(model(text).flatten(0, 1), following.flatten())
        loss.backward()
        for optimizer in (muon, adam):
            optimizer.step()
            optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f'step {step:3d}  loss {mean.item() / ranks:.4f}', flush=True)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
