# SPDX-License-Identifier: Apache-2.0
"""Gradients of FSDP2, from autograd to the sharded parameters' .grad."""

import math

import torch

from .stats import count
from .unit import Gradients

_ALIGNMENT = 64  # bytes, of each sharded gradient in the flat tensor of all


def unit_shape(param):
    """The parameter with the dimension along which it is cut first, which is how its parts lie in a slot."""
    size, dim = param._orig_size, param.fsdp_placement.dim
    return tuple(size) if dim == 0 else (size[dim], size.numel() // size[dim])


def shard_of(param):
    """This rank's part without FSDP2's padding, flat."""
    return param._sharded_param_data[:param.sharded_size.numel()]


class Reduction:
    """Reduces gradients of some parameters together. Sums are rounded to `sum_dtype`."""

    def __init__(self, comm, name, fsdp_params, dtype, sum_dtype):
        self._params, self._dtype, self._sum_dtype, self._ranks = fsdp_params, dtype, sum_dtype, comm.size
        self._unit = Gradients(comm, name, [unit_shape(param) for param in fsdp_params], [shard_of(param) for param in fsdp_params],
                               dtype, sum_dtype)
        self.bytes = sum(param._orig_size.numel() for param in fsdp_params) * dtype.itemsize
        self._in_flight = None

    def submit(self, grads, factor):
        """Returns itself. A gradient is None where the parameter took no part, on any rank. `factor`: what the sums are divided by,
        None for the ranks."""
        whole = [self._laid_out(param, grad) for param, grad in zip(self._params, grads)]
        factor = factor or self._ranks
        exact = math.frexp(factor)[0] == 0.5  # of a power of two: multiplying by its inverse is dividing by it
        sums = self._sums_so_far(grads) if exact else None
        places = sums or self._new_places()
        self._unit.reduce(whole, places, 1 / factor if exact else 1.0, accumulate=sums is not None)
        count("reduce_grads", *whole)
        took_part = [grad is not None for grad in grads]
        self._in_flight = (whole, places, took_part, sums is not None, None if exact else factor)
        return self

    def _laid_out(self, param, grad):
        if grad is None:
            grad = torch.zeros(param._orig_size, dtype=self._dtype)
        dim = param.fsdp_placement.dim
        if dim != 0:
            grad = torch.cat(torch.chunk(grad, self._ranks, dim=dim), dim=0)
        return grad.to(self._dtype).contiguous()

    def _sums_so_far(self, grads):
        """The sharded gradients to add to in place, if every parameter takes part and has one."""
        sums = [param.sharded_param.grad for param in self._params]
        if any(grad is None or held is None or held._local_tensor.dtype != self._sum_dtype
               or not held._local_tensor.is_contiguous() for grad, held in zip(grads, sums)):
            return None
        return [held._local_tensor for held in sums]

    def _new_places(self):
        """Parts of one flat tensor, as the gradients that FSDP2 makes."""
        step, ends = _ALIGNMENT // self._sum_dtype.itemsize, [0]
        for param in self._params:
            ends.append(ends[-1] + -(-param.sharded_size.numel() // step) * step)
        flat = torch.empty(ends[-1], dtype=self._sum_dtype)
        return [flat.narrow(0, begin, param.sharded_size.numel()) for begin, param in zip(ends, self._params)]

    def finish(self, keep):
        """Waits, and hands the sums to the parameters, unless they are not wanted."""
        (_, places, took_part, accumulated, factor), self._in_flight = self._in_flight, None
        self._unit.wait()
        if not keep:
            return
        with torch.no_grad():
            for param, place in ((param, place) for param, place, took in zip(self._params, places, took_part) if took):
                if not accumulated:
                    self._give(param, place, factor)
                for hook in (getattr(param.sharded_param, "_post_accumulate_grad_hooks", None) or {}).values():
                    hook(param.sharded_param)

    @staticmethod
    def _give(param, place, factor):
        if factor is not None:
            place.div_(factor)
        grad = place if param.sharded_grad_dtype in (None, place.dtype) else place.to(param.sharded_grad_dtype)
        grad = torch.as_strided(grad, param.sharded_size, param.contiguous_sharded_stride)
        if param.sharded_param.grad is None:
            param.sharded_param.grad = param.to_sharded_dtensor(grad)
        else:
            param.sharded_param.grad._local_tensor += grad
