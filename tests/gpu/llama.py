# SPDX-License-Identifier: Apache-2.0
"""A small Llama (RMSNorm, rotary attention with grouped keys, SwiGLU), and data for it that every
rank can make."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, KEY_HEADS, HIDDEN, WORDS, LENGTH = 64, 4, 2, 176, 96, 16
STEPS, RATE = 6, 0.5  # steps of training, and the learning rate


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return (
            x
            * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5).to(x.dtype)
            * self.weight
        )


def rotated(x):
    half = x.size(-1) // 2
    angles = torch.arange(x.size(-2), device=x.device)[:, None] / 10000 ** (
        torch.arange(half, device=x.device) / half
    )
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        size = WIDTH // HEADS
        self.query, self.key, self.value = (
            nn.Linear(WIDTH, heads * size, bias=False) for heads in (HEADS, KEY_HEADS, KEY_HEADS)
        )
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (
            nn.Linear(WIDTH, HIDDEN, bias=False),
            nn.Linear(WIDTH, HIDDEN, bias=False),
        )
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.before, self.between = Norm(), Norm()

    def forward(self, x):
        y = self.before(x)
        query, key, value = (
            layer(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(-2, -3)
            for layer in (self.query, self.key, self.value)
        )
        key, value = (part.repeat_interleave(HEADS // KEY_HEADS, -3) for part in (key, value))
        scores = rotated(query) @ rotated(key).transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        x = x + self.out(
            (scores.masked_fill(ahead, float('-inf')).softmax(-1) @ value)
            .transpose(-2, -3)
            .flatten(-2)
        )
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, blocks=3):
        super().__init__()
        torch.manual_seed(11)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words):
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(step, rank, device, size=4):
    """Returns (words, the words that follow them) of one rank in a step. Each word determines the
    next one, so the model can learn to predict it."""
    words = torch.randint(
        0, WORDS, (size, LENGTH), generator=torch.Generator().manual_seed(1000 * step + rank)
    )
    return words.to(device), ((7 * words + 3) % WORDS).to(device)


def loss_of(logits, wanted):
    return F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())
