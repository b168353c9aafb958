# SPDX-License-Identifier: Apache-2.0
"""Trains a small Llama on units of device memory, with only the C API. This is one rank, which
units_test.py starts. It needs no backend of torch.distributed, so any torch that supports the GPU
will do. With STAND_IN=1 the device is that of the stand-in driver, whose memory is host memory.
Then tensors of the CPU lie in it, and the host waits for the stream before it touches them.

Prints a line `loss NUMBER` for each step. If there is no GPU, or there are no kernels for it, it
prints the reason, and the exit status is 77.
"""

import ctypes
import importlib
import os
import sys
import types
from pathlib import Path

import torch
from llama import RATE, STEPS, Llama, batch, loss_of


def load_capi():
    """Loads fsccl_torch's declarations of the C API, without the rest of the package, which would
    register a backend."""
    package = types.ModuleType('fsccl_capi')
    package.__path__ = [str(Path(__file__).resolve().parents[2] / 'bindings/torch/fsccl_torch')]
    sys.modules[package.__name__] = package
    return importlib.import_module('fsccl_capi._capi')


c = load_capi()


class Gpu:
    device = torch.device('cuda', 0)

    def stream(self):
        return torch.cuda.current_stream().cuda_stream

    def settle(self):
        """Must be called before torch touches memory that the library uses. On a GPU the stream
        orders that, so there is nothing to do."""

    def tensor(self, address, count):
        class Owner:
            __cuda_array_interface__ = {
                'shape': (count,),
                'typestr': '<f4',
                'data': (address, False),
                'version': 3,
            }

        return torch.as_tensor(Owner(), device=self.device)


class StandIn:
    device = torch.device('cpu')

    def __init__(self):
        self._cuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p()
        self._must(self._cuda.cuInit(0))
        self._must(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self._must(self._cuda.cuCtxPushCurrent_v2(context))

    @staticmethod
    def _must(code):
        assert code == 0, f'the stand-in driver returned {code}'

    def stream(self):
        return 0

    def settle(self):
        self._must(self._cuda.cuStreamSynchronize(None))

    def tensor(self, address, count):
        return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)


def made(function, *arguments):
    """Returns the handle that a create function makes."""
    handle = ctypes.c_void_p()
    status = function(*arguments, ctypes.byref(handle))
    if status == c.ERR_NOT_AVAILABLE:
        print(c.error(status))
        sys.exit(77)
    c.check(status)
    return handle.value


class Unit:
    """The unit of one module's parameters, with fp32 shards in the pool. It is gathered and reduced
    in fp32."""

    def __init__(self, gpu, comm, pool, module):
        self.gpu, self.params = gpu, dict(module.named_parameters())
        self.shapes = [param.shape for param in self.params.values()]
        entries = (c.Param * len(self.shapes))()
        for entry, shape in zip(entries, self.shapes):
            entry.dims, entry.dtype, entry.tied_to = len(shape), c.FLOAT32, -1
            entry.shape[: len(shape)] = shape
        config = c.UnitConfig(
            layout=c.LAYOUT_PER_PARAM,
            shard_comm=comm,
            pool=pool,
            wire_dtype=c.FLOAT32,
            reduce_dtype=c.FLOAT32,
            grad_dtype=c.FLOAT32,
        )
        self.handle = made(c.lib.fsccl_unit_create, ctypes.byref(config), entries, len(self.shapes))
        for index, param in enumerate(self.params.values()):
            shard, offset = self.view(c.lib.fsccl_unit_shard, index)
            shard.copy_(param.detach().flatten()[offset : offset + shard.numel()])

    def view(self, function, index, *stream):
        found = c.View()
        c.check(function(self.handle, index, *stream, ctypes.byref(found)))
        if not found.count:
            return torch.empty(0, device=self.gpu.device), 0
        return self.gpu.tensor(found.data, found.count), found.offset

    def gather(self):
        """Gathers the parameters, and returns them by name as leaves of autograd."""
        c.check(c.lib.fsccl_unit_unshard(self.handle, 0, self.gpu.stream(), None))
        self.gpu.settle()
        return {
            name: self.view(c.lib.fsccl_unit_param, index)[0].view(shape).requires_grad_()
            for index, (name, shape) in enumerate(zip(self.params, self.shapes))
        }

    def reduce(self, leaves):
        """Reduces gradients to the mean over the ranks, and makes a step of gradient descent on the
        shards."""
        for index, leaf in enumerate(leaves.values()):
            whole, _ = self.view(c.lib.fsccl_unit_grad, index, self.gpu.stream())
            whole.copy_(leaf.grad.flatten())
        c.check(c.lib.fsccl_unit_reshard(self.handle, self.gpu.stream()))
        c.check(c.lib.fsccl_unit_reduce_grads(self.handle, None, self.gpu.stream(), None))
        self.gpu.settle()
        for index in range(len(self.shapes)):
            shard = self.view(c.lib.fsccl_unit_shard, index)[0]
            shard.sub_(self.view(c.lib.fsccl_unit_sharded_grad, index)[0], alpha=RATE)


def main():
    gpu = StandIn() if os.environ.get('STAND_IN') else Gpu()
    rank = int(os.environ['RANK'])
    comm = made(c.lib.fsccl_comm_create, None)
    memory = c.PoolConfig(memory=c.MEMORY_CUDA, device=0, record=1)
    pool = made(c.lib.fsccl_pool_create, comm, ctypes.byref(memory))
    model = Llama().to(gpu.device)
    units = {
        '': Unit(
            gpu,
            comm,
            pool,
            torch.nn.ModuleDict({'embed': model.embed, 'norm': model.norm, 'head': model.head}),
        )
    }
    units.update(
        {f'blocks.{i}.': Unit(gpu, comm, pool, block) for i, block in enumerate(model.blocks)}
    )
    for step in range(STEPS):
        words, wanted = batch(step, rank, gpu.device)
        leaves = {prefix: unit.gather() for prefix, unit in units.items()}
        everything = {
            prefix + name: leaf for prefix, own in leaves.items() for name, leaf in own.items()
        }
        loss = loss_of(torch.func.functional_call(model, everything, (words,)), wanted)
        loss.backward()
        print(f'loss {loss.item():.9g}', flush=True)
        for prefix, unit in reversed(units.items()):
            unit.reduce(leaves[prefix])
        c.check(c.lib.fsccl_pool_step(pool))
    for unit in units.values():
        c.check(c.lib.fsccl_unit_destroy(unit.handle))
    c.check(c.lib.fsccl_pool_destroy(pool))
    c.check(c.lib.fsccl_comm_destroy(comm))


if __name__ == '__main__':
    main()
