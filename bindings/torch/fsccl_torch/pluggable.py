# SPDX-License-Identifier: Apache-2.0
"""A torch.cuda.MemPool that allocates from the arena of an FSCCL pool on a device:

with torch.cuda.use_mem_pool(fsccl_torch.mem_pool(group)):
    buffer = torch.empty(n, device="cuda")
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.distributed as dist

from . import _capi as c
from . import streams

# For each device this has the MemPool, and what must live as long as it.
_serving: dict[torch.device, Any] = {}


def mem_pool(
    group: dist.ProcessGroup | None = None, device: torch.device | str | None = None
) -> torch.cuda.MemPool:
    """Returns the MemPool of `group` (by default the world) on `device` (by default the current
    one). The first call is collective. A process has one MemPool for each device, which belongs to
    the group that asked first. torch keeps a MemPool's memory in segments of 2 MiB and more. They
    return to the pool when the MemPool is empty and torch.cuda.empty_cache() is called."""
    device = streams.with_index(device if device is not None else 'cuda')
    comm = (group or dist.group.WORLD)._get_backend(device)._comm
    known = _serving.get(device)
    if known is None:
        with comm.lock:
            handle = comm.pool_of(device).open('mem_pool')
        source = c.Allocator()
        c.check(c.lib.fsccl_pool_allocator(handle, ctypes.byref(source)))
        c.check(c.lib.fsccl_torch_use(device.index, ctypes.byref(source)))
        known = _serving[device] = (*streams.cuda.pluggable_pool(str(c.path())), source, comm)
    elif known[3] is not comm:
        raise ValueError(
            f"{comm.who()}: mem_pool: the pool of group '{known[3].name}' serves {device} in this "
            f'process already, '
            "and blocks of torch cannot change theirs: allocate there, or with the backend's "
            'allocate_tensor()'
        )
    return known[0]
