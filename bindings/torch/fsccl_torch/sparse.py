# SPDX-License-Identifier: Apache-2.0
"""The all-reduce of a sparse (COO) tensor. The indices and values of all ranks are gathered, and
values with equal indices are summed."""

import ctypes

import torch
from torch.distributed import ReduceOp

from . import _capi as c
from .dtypes import MOVED
from .stats import count

_CALL = 'all_reduce'


def all_reduce(group, tensor, opts):
    kind = opts.reduceOp.op
    if kind not in (ReduceOp.SUM, ReduceOp.AVG) or not tensor.is_cpu:
        group._refuse(
            _CALL,
            f'sparse tensors are summed or averaged, in host memory; not {kind} on {tensor.device}',
        )
    mine = tensor.coalesce()
    sizes = torch.empty(group._size, dtype=torch.int64)
    _gather(group, torch.tensor([mine._nnz()]), sizes, [1] * group._size)
    sizes = sizes.tolist()
    indices = torch.empty((sum(sizes), mine.sparse_dim()), dtype=torch.int64)
    values = torch.empty((sum(sizes), *mine.values().shape[1:]), dtype=mine.dtype)
    _gather(
        group,
        mine.indices().t().contiguous(),
        indices,
        [size * indices[0:1].numel() for size in sizes],
    )
    _gather(
        group, mine.values().contiguous(), values, [size * values[0:1].numel() for size in sizes]
    )
    total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()
    tensor.copy_(total / group._size if kind == ReduceOp.AVG else total)
    count(_CALL, values)
    return group._comm.done(_CALL, [tensor])


def _gather(group, mine, everybody, counts):
    code, per = MOVED[mine.dtype]
    sizes = (ctypes.c_size_t * group._size)(*(n * per for n in counts))
    group._comm.submit(
        _CALL,
        c.lib.fsccl_all_gather_v,
        (mine.data_ptr(), everybody.data_ptr(), sizes, None, code),
        (mine, everybody),
        [],
    ).wait()
