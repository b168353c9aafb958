# SPDX-License-Identifier: Apache-2.0
"""A communication hook for DistributedDataParallel that reduces gradients as FSDP does: its
all-reduce is a reduce-scatter and an all-gather."""

import torch
import torch.distributed as dist


# DDP compares the annotation of `bucket` with the class itself, so it must not be a string.
def reduce_scatter_all_gather_hook(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Reduces a bucket of DDP's gradients in place, without padding. Use it as
    `model.register_comm_hook(group_or_None, reduce_scatter_all_gather_hook)`. The result has the
    bits of torch.distributed.algorithms.ddp_comm_hooks.default_hooks.allreduce_hook over the same
    group."""
    group = group or dist.group.WORLD
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.SUM
    if hasattr(options, 'asyncOp'):  # before 2.8 all collectives are asynchronous
        options.asyncOp = True
    work = group.allreduce_coalesced([bucket.buffer().div_(group.size())], options)
    return work.get_future().then(lambda future: future.value()[0])
