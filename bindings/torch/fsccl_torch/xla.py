# SPDX-License-Identifier: Apache-2.0
"""PyTorch/XLA's FSDP over FSCCL. torch_xla 2.9 knows one process on a CPU, so its own collectives
stay within a process. XlaFullyShardedDataParallel has them as attributes, and this module replaces
these by collectives of torch.distributed. The graph of the step ends there, the bytes go through
the host, and a new graph begins with the result.

    dist.init_process_group("fsccl")                  # a process for each rank, PJRT_DEVICE=CPU
    model = fsccl_torch.xla.FullyShardedDataParallel(model, flatten_parameters=True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

try:
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
    from torch_xla.distributed.fsdp.utils import BucketizedReduceScatter
except ImportError as error:
    raise ImportError(
        'fsccl_torch.xla needs torch_xla 2.9 and torch 2.9: install them with `pip install '
        f'torch==2.9.0 torch_xla==2.9.0` ({error})'
    ) from error

__all__ = ['FullyShardedDataParallel']

_REDUCTIONS = {
    xm.REDUCE_SUM: dist.ReduceOp.SUM,
    xm.REDUCE_MUL: dist.ReduceOp.PRODUCT,
    xm.REDUCE_MIN: dist.ReduceOp.MIN,
    xm.REDUCE_MAX: dist.ReduceOp.MAX,
    xm.REDUCE_AND: dist.ReduceOp.BAND,
    xm.REDUCE_OR: dist.ReduceOp.BOR,
}


class FullyShardedDataParallel(XlaFullyShardedDataParallel):
    """XlaFullyShardedDataParallel with shards on the ranks of `process_group`. None means the
    default group of torch.distributed. The other arguments and the results are those of torch_xla;
    sharding_groups, sharding_rank and sharding_world_size follow from the group. All ranks begin
    with equal parameters, as with torch_xla. Gradients of a module are reduced together unless
    reduce_scatter_bucket_size_mb says otherwise."""

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        process_group: dist.ProcessGroup | None = None,
        **named: Any,
    ) -> None:
        ranks = named.pop('sharding_groups', None)
        # auto_wrap_policy gives the ranks of this module to the children that it wraps.
        if not isinstance(ranks, _Ranks):
            _refuse_groups(ranks, named)
            ranks = _Ranks(process_group)
        named.setdefault('auto_wrapper_callable', type(self))
        super().__init__(
            module,
            sharding_groups=ranks,
            sharding_rank=ranks.rank,
            sharding_world_size=ranks.size,
            **{
                name: value
                for name, value in named.items()
                if name not in ('sharding_rank', 'sharding_world_size')
            },
        )
        self.all_gather_op = ranks.all_gather
        self.all_reduce_op = ranks.all_reduce
        self.reduce_scatter_op = _ReduceScatter(ranks, named.get('reduce_scatter_bucket_size_mb'))


class _Ranks(list[list[int]]):
    """A process group with its collectives, in the form of torch_xla's list of groups. torch_xla
    hands the list to the modules that it wraps by itself, so these have the group, too."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        if not dist.is_initialized():
            raise RuntimeError(
                'fsccl_torch.xla.FullyShardedDataParallel: there is no process group: call '
                'torch.distributed.init_process_group("fsccl") first'
            )
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise ValueError(
                'fsccl_torch.xla.FullyShardedDataParallel: this process is not in process_group'
            )
        super().__init__([list(range(self.size))])

    def all_gather(self, value: Any, dim: int = 0, groups: Any = None) -> Any:
        """Does what xm.all_gather() does for a tensor or a list."""
        if dim != 0:
            raise ValueError(f'fsccl_torch.xla: all_gather along dimension {dim}: only 0 is used')
        values = [value] if isinstance(value, torch.Tensor) else value
        sent = _to_host(values)
        received = [part.new_empty((part.shape[0] * self.size, *part.shape[1:])) for part in sent]
        _wait(
            dist.all_gather_into_tensor(whole, part, self.group, async_op=True)
            for whole, part in zip(received, sent)
        )
        results = _to_device(received, values)
        return results[0] if isinstance(value, torch.Tensor) else results

    def all_reduce(self, kind: str, inputs: Any, scale: float = 1.0, groups: Any = None) -> Any:
        """Does what xm.all_reduce() does. It returns the sum of a tensor, and writes the sums of a
        list in place."""
        values = [inputs] if isinstance(inputs, torch.Tensor) else inputs
        sums = _to_host(values)
        _wait(dist.all_reduce(part, _REDUCTIONS[kind], self.group, async_op=True) for part in sums)
        results = [part * scale for part in _to_device(sums, values)]
        if isinstance(inputs, torch.Tensor):
            return results[0]
        for value, result in zip(values, results):
            value.copy_(result)
        return inputs

    def reduce_scatter(self, values: Sequence[torch.Tensor], scale: float) -> list[torch.Tensor]:
        """Returns this rank's part of the sums, along the first dimension."""
        sent = _to_host(values)
        received = [part.new_empty((part.shape[0] // self.size, *part.shape[1:])) for part in sent]
        _wait(
            dist.reduce_scatter_tensor(own, part, dist.ReduceOp.SUM, self.group, async_op=True)
            for own, part in zip(received, sent)
        )
        return [part * scale for part in _to_device(received, values)]


class _ReduceScatter(BucketizedReduceScatter):
    """torch_xla's bucket of gradients, which FSCCL reduces. It is full at so many `megabytes`. With
    None all gradients of a module are one bucket."""

    def __init__(self, ranks: _Ranks, megabytes: int | None) -> None:
        super().__init__(megabytes or 0, shard_count=ranks.size, groups=ranks, pin_layout=False)
        if megabytes is None:
            self.bucket_size_bytes = float('inf')

    def flush(self) -> None:
        if not self.bucket:
            return
        results = self.groups.reduce_scatter(self.bucket, self.scale)
        done: list[Callable[[torch.Tensor], None]] = list(self.callbacks)
        self.bucket.clear()
        self.callbacks.clear()
        self.bucket_watermark = 0
        for callback, result in zip(done, results):
            callback(result)


def _refuse_groups(ranks: Any, named: dict[str, Any]) -> None:
    for name, value in (
        ('sharding_groups', ranks),
        ('sharding_rank', named.get('sharding_rank')),
        ('sharding_world_size', named.get('sharding_world_size')),
    ):
        if value is not None:
            raise ValueError(
                f'fsccl_torch.xla.FullyShardedDataParallel: {name} is {value}: the ranks are those '
                'of torch.distributed: give process_group=torch.distributed.new_group(...) instead'
            )


def _to_host(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies values to the host. First it runs all that the program has asked for so far, so that
    no part is computed again for a later value. torch_xla.sync() would also run the program's step
    closures."""
    torch_xla._XLAC._xla_step_marker(
        torch_xla._XLAC._xla_get_default_device(), [], wait=False, reset_scope=False
    )
    return [part.contiguous() for part in torch_xla._XLAC._xla_get_cpu_tensors(list(values))]


def _to_device(parts: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [part.to(value.device) for part, value in zip(parts, like)]


def _wait(works: Any) -> None:
    """Waits for all works. All of them are begun before the first is waited for."""
    for work in list(works):
        work.wait()
