# SPDX-License-Identifier: Apache-2.0
"""The communication of FSDP2's fully_shard() on memory of FSCCL's pool:

    module.set_custom_all_gather(fsccl_torch.AllGather())
    module.set_custom_reduce_scatter(fsccl_torch.ReduceScatter())

Buffers come from the pool of `group` (by default the world) and return to it when FSDP2 drops them.
All ranks of `group` make its pool together at the first gather, so give the group of the shards
where ranks run different modules, as the stages of a pipeline do.
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_api as api

from .backend import FscclBackend
from .base import all_gather_single, reduce_scatter_single

if not hasattr(api, 'AllGather'):
    raise ImportError(
        f'fsccl_torch: FSDP2 of torch {torch.__version__} takes no collectives of others '
        f'(AllGather, ReduceScatter): '
        'leave them away, or install torch 2.8 or newer.'
    )


class _Allocate:
    def __init__(self, group=None):
        self._group = group

    def allocate(self, size, *, dtype, device):
        backend = (self._group or dist.group.WORLD)._get_backend(torch.device(device))
        if not isinstance(backend, FscclBackend):  # torch's debug wrapper may be around it
            return torch.empty(size, dtype=dtype, device=device)
        return backend.allocate_tensor(size, dtype=dtype, device=device)


class AllGather(_Allocate, api.AllGather):
    """Gathers in memory of the pool. With `overlap` a gather returns at once and FSDP2 waits when
    it uses the parameters, so that prefetched ones travel while the layer before is computed."""

    def __init__(self, group=None, overlap=True):
        super().__init__(group)
        self._overlap = overlap

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        return all_gather_single(
            output_tensor, input_tensor, group=group, async_op=async_op or self._overlap
        )


class ReduceScatter(_Allocate, api.ReduceScatter):
    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        return reduce_scatter_single(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )
