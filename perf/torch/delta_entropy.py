#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures by how many bits a weight of bfloat16 changes in a step of training: the entropy of its
differences in units in the last place, and what the nibbles of the delta codec take
(docs/codecs.md). The script trains a transformer on bytes (AdamW, warm-up, cosine) with torch
alone.

  delta_entropy.py [--text FOLDER] [--steps 300] [--width 192] [--layers 6] [--lr 3e-4]
                   [--every 1] [--json FILE] [--chart FILE.svg]

--text is a folder whose .py files are the text; the default is the standard library of this Python.
--every N measures only each Nth step, for large models. The JSON file gets a line for each measured
step and layer, and the output a table. Width 960, 10 layers and length 128 are 111 million
parameters.
"""

import argparse
import json
import math
import os
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = (
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(batch, length, width)
        )
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Bytes(nn.Module):
    def __init__(self, width, layers, length):
        super().__init__()
        self.embedding, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def groups_of(model):
    """Returns the parameters in groups, as FSDP would have them in units: the root's, and those of
    each block."""
    groups = {'root': []}
    for name, parameter in model.named_parameters():
        key = f'block {name.split(".")[1]}' if name.startswith('blocks.') else 'root'
        groups.setdefault(key, []).append(parameter)
    return groups


def words_of(parameters):
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).to(
        torch.bfloat16
    )
    return flat.view(torch.int16).numpy().view(np.uint16).copy()


def order_of(words):
    return np.where(words & 0x8000, ~words, words | 0x8000).astype(np.uint16)


def measure(words, before):
    """Returns the bits of a word by entropy, those by the formula of nibbles without headers, and
    the share of words that did not change."""
    difference = (order_of(words) - order_of(before)).view(np.int16).astype(np.int32)
    zigzag = np.where(difference >= 0, 2 * difference, -2 * difference - 1)
    counts = np.bincount(zigzag, minlength=1)
    shares = counts[counts > 0] / len(words)
    nibbles = 4 + 8 * (zigzag >= 15).mean() + 16 * (zigzag >= 270).mean()
    return float(-(shares * np.log2(shares)).sum()), float(nibbles), float((difference == 0).mean())


def rate_at(step, options):
    warm = min(1.0, (step + 1) / options.warmup)
    return options.lr * warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / options.steps)))


def load_text(folder, most=8 << 20):
    text, size = [], 0
    for path in sorted(Path(folder).rglob('*.py')):
        if size < most and 'test' not in path.parts:
            text.append(path.read_bytes())
            size += len(text[-1])
    return torch.frombuffer(bytearray(b'\n'.join(text)[:most]), dtype=torch.uint8)


def train(options):
    torch.manual_seed(0)
    text = load_text(options.text)
    model = Bytes(options.width, options.layers, options.length)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(
        f'{count:,} parameters, {len(text):,} bytes of text, {options.steps} steps of '
        f'{options.batch} x {options.length}',
        flush=True,
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1
    )
    groups = groups_of(model)
    lines = []
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group['lr'] = rate_at(step, options)
        at = torch.randint(len(text) - options.length - 1, (options.batch,))
        tokens = torch.stack([text[i : i + options.length + 1] for i in at]).long()
        loss = F.cross_entropy(model(tokens[:, :-1]).reshape(-1, 256), tokens[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        measured = groups if step % options.every == 0 else {}
        before = {name: words_of(parameters) for name, parameters in measured.items()}
        optimizer.step()
        optimizer.zero_grad()
        for name, parameters in measured.items():
            words = words_of(parameters)
            entropy, nibbles, same = measure(words, before[name])
            lines.append(
                {
                    'step': step,
                    'unit': name,
                    'words': len(words),
                    'lr': rate_at(step, options),
                    'loss': loss.item(),
                    'entropy': round(entropy, 4),
                    'nibbles': round(nibbles, 4),
                    'same': round(same, 4),
                }
            )
        if measured and (step % 25 == 0 or step == options.steps - 1):
            mean = mean_of(lines, step)
            print(
                f'step {step:4} lr {rate_at(step, options):.1e} loss {loss.item():.3f}: entropy '
                f'{mean[0]:.2f} bits, '
                f'{16 / mean[0]:.1f} x; nibbles {mean[1]:.2f} bits, {16 / mean[1]:.2f} x',
                flush=True,
            )
    return lines


def mean_of(lines, step):
    here = [line for line in lines if line['step'] == step]
    words = sum(line['words'] for line in here)
    return [
        sum(line[key] * line['words'] for line in here) / words for key in ('entropy', 'nibbles')
    ]


def chart(lines, path):
    """Draws the bits of a weight by step: a line for the entropy of each unit, and one for the mean
    of the nibbles."""
    wide, high, left, top = 720, 360, 56, 20
    steps = max(line['step'] for line in lines)
    measured = sorted({line['step'] for line in lines})
    most = max(6.0, math.ceil(max(line['entropy'] for line in lines)))
    units = sorted({line['unit'] for line in lines})

    def place(step, bits):
        return f'{left + step / steps * wide:.1f},{top + (1 - bits / most) * high:.1f}'

    colours = [
        '#1f77b4',
        '#ff7f0e',
        '#2ca02c',
        '#d62728',
        '#9467bd',
        '#8c564b',
        '#e377c2',
        '#17becf',
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide + 190}" height="{high + 70}" '
        f'font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for bits in range(int(most) + 1):
        y = top + (1 - bits / most) * high
        parts.append(
            f'<path d="M{left} {y:.1f}h{wide}" stroke="#ddd"/>'
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{bits}</text>'
        )
    series = [
        (
            unit,
            [(line['step'], line['entropy']) for line in lines if line['unit'] == unit],
            colours[k % len(colours)],
        )
        for k, unit in enumerate(units)
    ]
    series.append(('nibbles, all', [(step, mean_of(lines, step)[1]) for step in measured], '#000'))
    for k, (name, points, colour) in enumerate(series):
        track = ' '.join(place(*point) for point in points)
        parts.append(
            f'<polyline points="{track}" fill="none" stroke="{colour}" stroke-width="1.4"/>'
        )
        parts.append(
            f'<text x="{left + wide + 10}" y="{top + 14 + 18 * k}" fill="{colour}">{name}</text>'
        )
    for step in range(0, steps + 1, 50):
        parts.append(
            f'<text x="{left + step / steps * wide:.1f}" y="{top + high + 18}" '
            f'text-anchor="middle">{step}</text>'
        )
    parts.append(
        f'<text x="{left + wide / 2}" y="{top + high + 40}" text-anchor="middle">step</text>'
        f'<text x="14" y="{top + high / 2}" transform="rotate(-90 14 {top + high / 2})" '
        f'text-anchor="middle">'
        'bits a bf16 weight (16 without a codec)</text></svg>'
    )
    Path(path).write_text('\n'.join(parts) + '\n', encoding='utf-8')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--text', default=sysconfig.get_paths()['stdlib'])
    threads = min(2, os.cpu_count() or 1)
    for name, value in (
        ('steps', 300),
        ('width', 192),
        ('layers', 6),
        ('length', 256),
        ('batch', 8),
        ('warmup', 20),
        ('every', 1),
        ('threads', threads),
    ):
        parser.add_argument(f'--{name}', type=int, default=value)
    parser.add_argument('--lr', type=float, default=3e-4)
    parser.add_argument('--json')
    parser.add_argument('--chart')
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = train(options)
    if options.json:
        Path(options.json).write_text(
            ''.join(json.dumps(line) + '\n' for line in lines), encoding='utf-8'
        )
    if options.chart:
        chart(lines, options.chart)
    mean = [mean_of(lines, step) for step in range(0, options.steps, options.every)]
    print(
        f'over the run: entropy {16 * len(mean) / sum(m[0] for m in mean):.2f} x fewer bytes, '
        f'nibbles {16 * len(mean) / sum(m[1] for m in mean):.2f} x'
    )


if __name__ == '__main__':
    main()
