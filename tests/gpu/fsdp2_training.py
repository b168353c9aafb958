# SPDX-License-Identifier: Apache-2.0
"""Trains a small Llama under fully_shard, whose all-gathers and reduce-scatters are those of
FSCCL's C API. This is one rank, which fsdp2_test.py starts. torch's own process group ("fake")
moves nothing, so all bytes of other ranks come over FSCCL.

Prints a line `loss NUMBER` for each step, and how often each collective was called. If the device
has no transport here, it prints the reason, and the exit status is 77.
"""

import os
import sys

import torch
import torch.distributed as dist
from llama import RATE, STEPS, Llama, batch, loss_of
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_api
from torch.testing._internal.distributed.fake_pg import FakeStore
from unit_training import c, made

DTYPES = {torch.float32: c.FLOAT32, torch.bfloat16: c.BFLOAT16}


class Collective:
    """Calls FSCCL on the stream that FSDP2 has made the current one. The host does not wait for
    the stream."""

    def __init__(self, comm):
        self.comm, self.calls = comm, 0

    def allocate(self, size, *, dtype, device):
        return torch.empty(size, dtype=dtype, device=device)

    def issue(self, function, *arguments, device):
        self.calls += 1
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == 'cuda' else None
        status = function(*arguments, self.comm, stream, None)
        if status == c.ERR_NOT_AVAILABLE:
            print(c.error(status))
            sys.exit(77)
        c.check(status)


class AllGather(Collective, _fsdp_api.AllGather):
    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        self.issue(
            c.lib.fsccl_all_gather,
            input_tensor.data_ptr(),
            output_tensor.data_ptr(),
            input_tensor.numel(),
            DTYPES[input_tensor.dtype],
            device=input_tensor.device,
        )


class ReduceScatter(Collective, _fsdp_api.ReduceScatter):
    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        assert op == dist.ReduceOp.SUM, op
        self.issue(
            c.lib.fsccl_reduce_scatter,
            input_tensor.data_ptr(),
            output_tensor.data_ptr(),
            output_tensor.numel(),
            DTYPES[input_tensor.dtype],
            c.Op(kind=c.OP_SUM),
            device=input_tensor.device,
        )


def main():
    torch.set_num_threads(1)
    device = torch.device('cuda', 0) if torch.cuda.is_available() else torch.device('cpu')
    if device.type == 'cuda':
        torch.cuda.set_device(device)
    rank = int(os.environ['RANK'])
    dist.init_process_group(
        'fake', store=FakeStore(), rank=rank, world_size=int(os.environ['WORLD_SIZE'])
    )
    mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)
    comm = made(c.lib.fsccl_comm_create, None)
    gather, reduce = AllGather(comm), ReduceScatter(comm)
    model = Llama().to(device)
    for module in [*model.blocks, model]:
        fully_shard(module, mesh=mesh)
        module.set_custom_all_gather(gather)
        module.set_custom_reduce_scatter(reduce)
        module.set_force_sum_reduction_for_comms(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(STEPS):
        words, wanted = batch(step, rank, device)
        loss = loss_of(model(words), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f'loss {loss.item():.9g}', flush=True)
    print(f'all_gather {gather.calls} reduce_scatter {reduce.calls}', flush=True)
    c.check(c.lib.fsccl_comm_destroy(comm))


if __name__ == '__main__':
    main()
