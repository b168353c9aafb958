# SPDX-License-Identifier: Apache-2.0
"""Counts what the backend has carried in this process: for each collective the calls, and the bytes
of the larger buffer."""

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
    """Returns {name: number}: "all_reduce" is the number of calls, "all_reduce_bytes" that of
    bytes, and so on."""
    found = {}
    for call, (calls, size) in _carried.items():
        found[call], found[f'{call}_bytes'] = calls, size
    return found
