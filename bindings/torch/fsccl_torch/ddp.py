# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel's gradients as the texts on FSDP begin: an all-reduce is a reduce-scatter
and an all-gather."""

import torch
import torch.distributed as dist


# DDP compares the annotation of `bucket` with the class itself: it must not be a string.
def reduce_scatter_all_gather_hook(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """`model.register_comm_hook(group_or_None, reduce_scatter_all_gather_hook)`. The result has the
    bits of torch.distributed.algorithms.ddp_comm_hooks.default_hooks.allreduce_hook over the same
    group; in place, without padding."""
    group = group or dist.group.WORLD
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.SUM
    if hasattr(options, 'asyncOp'):  # before 2.8 all collectives are asynchronous here
        options.asyncOp = True
    work = group.allreduce_coalesced([bucket.buffer().div_(group.size())], options)
    return work.get_future().then(lambda future: future.value()[0])
