#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a transformer on bytes with FSDP2 and codecs between hosts, and writes its losses on text
that it does not train on. perf/codec_curves.py starts the ranks and compares the codecs.

  train_bytes.py [--steps 2000] [--every 25] [--width 256] [--layers 6] [--batch 2] [--length 64]
                 [--gather-codec NAME] [--reduce-codec NAME] [--reversed] [--seed 1]
                 [--held-out-losses FILE]

The model is that of delta_entropy.py, in bf16 with fp32 sums, on the sources of Python's standard
library, trained by AdamW with a warm-up of 100 steps and then a cosine from 3e-4. After each
`--every` steps the loss of 32 held-out sequences is computed. --reversed reverses the order of the
sequences in a batch, so that every sum over the batch is made in another order. A codec of
reductions may end with + for its feedback, as in examples/train. At the end rank 0 prints what its
codecs have done (fsccl_torch.fsdp2.codec), as JSON.
"""

import argparse
import json
import sysconfig
from pathlib import Path

import fsccl_torch.fsdp2
import torch
import torch.distributed as dist
from delta_entropy import Bytes, load_text, rate_at
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

HELD_OUT_SEQUENCES = 32


def make_model(options):
    torch.manual_seed(options.seed)
    model = Bytes(options.width, options.layers, options.length)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    reduction = options.reduce_codec
    if reduction and reduction.endswith('+'):
        reduction = reduction[:-1] + '-feedback'
    return fsccl_torch.fsdp2.enable(
        model, gather_codec=options.gather_codec, reduce_codec=reduction
    )


def sequences(text, begins, length):
    return torch.stack([text[i : i + length + 1] for i in begins]).long()


def loss_of(model, tokens):
    logits = model(tokens[:, :-1]).float()
    return F.cross_entropy(logits.reshape(-1, 256), tokens[:, 1:].reshape(-1))


def train(options):
    """Returns the held-out losses, one for every `options.every` steps."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    text = load_text(options.text)
    held_out = len(text) * 9 // 10  # the text from here on is not trained on
    span = (len(text) - held_out - options.length - 1) // HELD_OUT_SEQUENCES
    begins = range(held_out + rank * span, held_out + HELD_OUT_SEQUENCES * span, ranks * span)
    tests = sequences(text, begins, options.length)
    model = make_model(options)
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    generator = torch.Generator().manual_seed(1000 * options.seed + rank)
    losses = []
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group['lr'] = rate_at(step, options)
        at = torch.randint(held_out - options.length - 1, (options.batch,), generator=generator)
        tokens = sequences(text, at, options.length)
        loss_of(model, tokens.flip(0) if options.reversed else tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % options.every == 0:
            with torch.no_grad():
                loss = loss_of(model, tests)
            dist.all_reduce(loss, op=dist.ReduceOp.AVG)
            losses.append(loss.item())
    if rank == 0:
        print(json.dumps(fsccl_torch.fsdp2.codec(model)))
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--text', default=sysconfig.get_paths()['stdlib'])
    for name, value in (
        ('steps', 2000),
        ('every', 25),
        ('width', 256),
        ('layers', 6),
        ('batch', 2),
        ('length', 64),
        ('warmup', 100),
        ('seed', 1),
    ):
        parser.add_argument(f'--{name}', type=int, default=value)
    parser.add_argument('--lr', type=float, default=3e-4)
    parser.add_argument('--gather-codec')
    parser.add_argument('--reduce-codec')
    parser.add_argument('--reversed', action='store_true')
    parser.add_argument('--held-out-losses', type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group('fsccl')
    losses = train(options)
    if dist.get_rank() == 0 and options.held_out_losses:
        lines = ''.join(f'{loss!r}\n' for loss in losses)
        options.held_out_losses.write_text(lines, encoding='utf-8')
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
