# SPDX-License-Identifier: Apache-2.0
"""Counts what the backend carried, in this process: calls and bytes of the larger buffer, by
collective."""

import collections

import torch

_carried: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])


def count(call: str, *tensors: torch.Tensor) -> None:
    count_bytes(call, sum(tensor.nbytes for tensor in tensors))


def count_bytes(call: str, size: int) -> None:
    carried = _carried[call]
    carried[0] += 1
    carried[1] += size


def stats() -> dict[str, int]:
    """{name: number}: "all_reduce" counts calls, "all_reduce_bytes" bytes, and so on."""
    found = {}
    for call, (calls, size) in _carried.items():
        found[call], found[f'{call}_bytes'] = calls, size
    return found
