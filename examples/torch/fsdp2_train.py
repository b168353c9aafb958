# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer with FSDP2 on this file's own text, character by character, and prints
loss and time of each step.

  pip install ./bindings/python ./bindings/torch
  torchrun --standalone --nproc-per-node 2 examples/torch/fsdp2_train.py
  torchrun --standalone --nproc-per-node 2 examples/torch/fsdp2_train.py --fused
  torchrun --standalone --nproc-per-node 2 examples/torch/fsdp2_train.py --backend gloo
  mpirun -n 2 python examples/torch/fsdp2_train.py                 mpiexec, prterun and srun
                                                                   likewise

Three lines concern FSCCL: from_launcher(), which torchrun makes needless; the name of the backend;
and, with --fused, enable(model) after fully_shard.
"""

import argparse
import pathlib
import time

import fsccl_torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

TEXT = torch.tensor(list(pathlib.Path(__file__).read_bytes()))
CHARACTERS = 256


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        heads = self.query_key_value(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.norm(x))


class Transformer(nn.Module):
    def __init__(self, width, layers, heads, tokens):
        super().__init__()
        self.embedding, self.position = nn.Embedding(CHARACTERS, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, CHARACTERS, bias=False)

    def forward(self, text):
        x = self.embedding(text) + self.position.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sample(step, rank, sequences, tokens):
    """Returns pieces of the text, different ones for each step and rank."""
    generator = torch.Generator().manual_seed(1_000_003 * step + rank)
    starts = torch.randint(len(TEXT) - tokens, (sequences, 1), generator=generator)
    pieces = TEXT[starts + torch.arange(tokens + 1)]
    return pieces[:, :-1], pieces[:, 1:]


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--backend', default='fsccl')
    parser.add_argument(
        '--fused', action='store_true', help='gather into parameters and reduce gradients in place'
    )
    parser.add_argument(
        '--bf16', action='store_true', help='gather and compute in bfloat16, reduce in float32'
    )
    for name, default in {
        'steps': 20,
        'width': 128,
        'layers': 4,
        'heads': 4,
        'sequences': 4,
        'tokens': 64,
    }.items():
        parser.add_argument(f'--{name}', type=int, default=default)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    fsccl_torch.from_launcher()
    dist.init_process_group(arguments.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # every rank makes the same weights and keeps its part of them
    model = Transformer(arguments.width, arguments.layers, arguments.heads, arguments.tokens)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    policy = (
        MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        if arguments.bf16
        else MixedPrecisionPolicy()
    )
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    if arguments.fused:
        from fsccl_torch import fsdp2

        fsdp2.enable(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if rank == 0:
        print(
            f'{parameters} parameters over {ranks} ranks, '
            f'{dist.get_backend()}{", fused" if arguments.fused else ""}'
        )

    for step in range(arguments.steps):
        begin = time.perf_counter()
        text, following = sample(step, rank, arguments.sequences, arguments.tokens)
        loss = nn.functional.cross_entropy(model(text).flatten(0, 1).float(), following.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.SUM)
        if rank == 0:
            milliseconds = 1e3 * (time.perf_counter() - begin)
            print(
                f'step {step:3d}  loss {mean.item() / ranks:.4f}  norm {norm.item():.4f}  '
                f'{milliseconds:.1f} ms',
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
