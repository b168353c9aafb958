# SPDX-License-Identifier: Apache-2.0
"""The way of FSDP2's gradients from autograd to the .grad of the sharded parameters."""

import math

import torch
import torch.distributed as dist

from . import _capi as c
from . import fsdp2_versions as versions
from . import streams
from .codecs import reduce_codec
from .dtypes import MOVED
from .operands import counts_of, tensor_list
from .stats import count
from .unit import Gradients

_ALIGNMENT = 64  # bytes; each sharded gradient in the flat tensor begins at a multiple of it
# Gradients of more bytes (such as an embedding's) get no slot if they need no cast, because their
# slot would make the peak of a step's memory.
_SLOT_BYTES = 32 << 20


def unit_shape(param):
    """Returns the shape of a parameter with the dimension along which it is cut first. Its parts
    lie in a slot in this order."""
    size, dim = param._orig_size, param.fsdp_placement.dim
    return tuple(size) if dim == 0 else (size[dim], size.numel() // size[dim])


def shard_of(param):
    """Returns this rank's part, flat and without FSDP2's padding."""
    return param._sharded_param_data[: param.sharded_size.numel()]


def _before(factor):
    """Returns the number by which FSDP2 divides fp16 gradients before it sums them, so that sums do
    not overflow: a power of two, about the square root of the whole divisor."""
    before = 1
    while factor % before == 0 and factor / before > before:
        before *= 2
    return before


class _Scatter:
    """Reduces as Gradients does, but has no memory of its own: it uses the transport's slots, which
    all ranks fill and empty together."""

    def __init__(self, comm, name, fsdp_params, dtype):
        self._comm, self._call, self._code, self._work = (
            comm,
            f"fsdp2: unit '{name}' reduced",
            MOVED[dtype][0],
            None,
        )
        self._counts = []
        for param in fsdp_params:
            rows, *_ = shape = unit_shape(param) or (1,)
            each, per_row = -(-rows // comm.size), math.prod(shape[1:])
            self._counts.append(
                counts_of(
                    *(min(each, max(0, rows - rank * each)) * per_row for rank in range(comm.size))
                )
            )

    def reduce(self, grads, places, scale, accumulate):
        """Is called as Gradients.reduce(), but cannot accumulate."""
        if accumulate:
            raise ValueError('it does not accumulate')
        entries = [
            (grad.data_ptr(), place, counts, self._code)
            for grad, place, counts in zip(grads, places, self._counts)
        ]
        average = scale * self._comm.size == 1
        op = c.Op(c.OP_AVG, 0, 1.0) if average else c.Op(c.OP_PREMUL_SUM, 0, scale)
        self._work = self._comm.submit(
            self._call,
            c.lib.fsccl_reduce_scatter_list,
            (tensor_list(entries), len(entries), op),
            (grads,),
            [],
        )

    def wait(self):
        self._work.wait()

    def codec_report(self):
        return None


class Reduction:
    """Reduces the gradients of some parameters together. Sums are rounded to `sum_dtype`.
    `replicas` is the process group over which these sums are then summed (HSDP), or None. `codec`
    names a codec of reductions, or is None."""

    def __init__(self, comm, name, fsdp_params, dtype, sum_dtype, replicas, codec):
        self._device = fsdp_params[0].device
        self._params, self._dtype, self._sum_dtype, self._replicas = (
            fsdp_params,
            dtype,
            sum_dtype,
            replicas,
        )
        self._parts, self._contributions = (
            comm.size,
            comm.size * (replicas.size() if replicas else 1),
        )
        # Large gradients are waited for at once, because holding them longer would make the peak of
        # memory.
        large = (
            sum(param._orig_size.numel() for param in fsdp_params) * dtype.itemsize > _SLOT_BYTES
        )
        self.synchronous = large and not streams.on_gpu(self._device)
        # FSDP2 rounds the sums and then adds them, in two steps. With 32 bits or more, one step
        # gives the same bits.
        self._accumulates = not replicas and sum_dtype.itemsize >= 4
        coded = reduce_codec(codec, dtype, sum_dtype)
        if self.synchronous and dtype == sum_dtype and coded is None:
            self._transfer = _Scatter(comm, name, fsdp_params, dtype)
            self._accumulates = False
        else:
            self._transfer = Gradients(
                comm,
                name,
                [unit_shape(param) for param in fsdp_params],
                [shard_of(param) for param in fsdp_params],
                dtype,
                sum_dtype,
                coded,
            )
        self._in_flight = None
        # These are the places where each sum begins in the flat tensor.
        step, self._begins, self._elements = _ALIGNMENT // sum_dtype.itemsize, [], 0
        for param in fsdp_params:
            self._begins.append(self._elements)
            self._elements += -(-param.sharded_size.numel() // step) * step

    def codec_report(self):
        """Returns what the codec has done so far (fsccl_codec_report_t), or None if there is no
        codec."""
        return self._transfer.codec_report()

    def submit(self, grads, factor):
        """Starts the reduction and returns this object. A gradient is None if its parameter took no
        part on any rank. The sums are divided by `factor`, or by the number of ranks if it is
        None."""
        factor = factor or self._contributions
        whole = [self._laid_out(param, grad) for param, grad in zip(self._params, grads)]
        if self._sum_dtype == torch.float16:
            before = _before(factor)
            whole, factor = [grad / before for grad in whole], factor / before
        # Multiplying by the inverse is the same as dividing if the factor is a power of two.
        exact = math.frexp(factor)[0] == 0.5 and (self._sum_dtype != torch.float16 or factor == 1)
        sums = self._sums_so_far(grads) if exact and self._accumulates else None
        flat = None if sums else self._new_flat()
        places = [held.data_ptr() for held in sums] if sums else self._places_in(flat.data_ptr())
        if streams.on_gpu(self._device):
            self._transfer.use(streams.cuda.current_stream(self._device))
        self._transfer.reduce(
            whole, places, 1 / factor if exact else 1.0, accumulate=sums is not None
        )
        count('reduce_grads', *whole)
        took_part = [grad is not None for grad in grads]
        self._in_flight = ((whole, sums), flat, took_part, None if exact else factor)
        return self

    def _laid_out(self, param, grad):
        if grad is None:
            grad = torch.zeros(param._orig_size, dtype=self._dtype, device=self._device)
        dim = param.fsdp_placement.dim
        if dim != 0:
            grad = torch.cat(torch.chunk(grad, self._parts, dim=dim), dim=0)
        return grad.to(self._dtype).contiguous()

    def _sums_so_far(self, grads):
        """Returns the sharded gradients to add to in place, or None unless every parameter takes
        part and has one."""
        sums = [param.sharded_param.grad for param in self._params]
        if any(
            grad is None
            or held is None
            or held._local_tensor.dtype != self._sum_dtype
            or not held._local_tensor.is_contiguous()
            for grad, held in zip(grads, sums)
        ):
            return None
        return [held._local_tensor for held in sums]

    def _new_flat(self):
        """Returns memory for the sums. The gradients that FSDP2 gets are views of it."""
        return torch.empty(self._elements, dtype=self._sum_dtype, device=self._device)

    def _places_in(self, address):
        size = self._sum_dtype.itemsize
        return [address + begin * size for begin in self._begins]

    def finish(self, keep):
        """Waits, and hands the sums to the parameters unless they are not wanted."""
        (_, flat, took_part, factor), self._in_flight = self._in_flight, None
        self._transfer.wait()
        if not keep:
            return
        with torch.no_grad():
            if self._replicas:
                dist.all_reduce(flat, group=self._replicas)
            if factor is not None:
                flat.div_(factor)
            for param, begin, took in zip(self._params, self._begins, took_part):
                if not took:
                    continue
                if flat is not None:  # otherwise the sums were added to the gradients in place
                    self._give(param, flat, begin)
                hooks = getattr(param.sharded_param, '_post_accumulate_grad_hooks', None)
                for hook in (hooks or {}).values():
                    hook(param.sharded_param)

    @staticmethod
    def _give(param, flat, begin):
        grad = torch.as_strided(flat, param.sharded_size, param.contiguous_sharded_stride, begin)
        dtype = versions.grad_dtype(param)
        if dtype not in (None, grad.dtype):
            grad = grad.to(dtype)
        if param.sharded_param.grad is None:
            param.sharded_param.grad = param.to_sharded_dtensor(grad)
        else:
            param.sharded_param.grad._local_tensor += grad
