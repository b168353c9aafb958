# SPDX-License-Identifier: Apache-2.0
"""Prepares tensors for FSCCL. The library uses contiguous tensors in place. Other tensors are
copied before the operation, or copied back as its last step."""

import ctypes
import functools

import torch

from . import _capi as c
from . import streams
from .base import blocking
from .dtypes import MOVED, reduction


@functools.lru_cache(maxsize=1024)
def counts_of(*counts):
    return (ctypes.c_size_t * len(counts))(*counts)


@functools.lru_cache(maxsize=1024)
def dealt_out(elements, size):
    """Returns how many of `elements` each of `size` ranks gets."""
    return counts_of(*(elements // size + (rank < elements % size) for rank in range(size)))


def _carried(tensor):
    return tensor.is_cpu or streams.on_gpu(tensor.device)


def _plain(tensor):
    return (
        _carried(tensor)
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def _adjacent(tensors):
    """Returns a tensor over all `tensors` if they lie end to end in one storage, or None."""
    first, at = tensors[0], None
    for tensor in tensors:
        if not _plain(tensor) or at not in (None, tensor.data_ptr()):
            return None
        at = tensor.data_ptr() + tensor.nbytes
    total = sum(tensor.numel() for tensor in tensors)
    if first.untyped_storage().nbytes() < (first.storage_offset() + total) * first.element_size():
        return None  # they are neighbours by chance, in different storages
    return first.as_strided((total,), (1,))


def _unpack(flat, tensors):
    for part, tensor in zip(flat.split([tensor.numel() for tensor in tensors]), tensors):
        tensor.copy_(part.view(tensor.shape))


def tensor_list(entries):
    return (c.Tensor * len(entries))(
        *(
            c.Tensor(send, recv, ctypes.cast(counts, ctypes.POINTER(ctypes.c_size_t)), code)
            for send, recv, counts, code in entries
        )
    )


@functools.lru_cache(maxsize=1024)
def _begins(*counts):
    return counts_of(*(sum(counts[:rank]) for rank in range(len(counts))))


def _run_all(functions):
    for function in functions:
        function()


class Operands:
    """Has what the collectives have in common. Needs `_comm` (a Communicator), and its `_size` and
    `_rank`."""

    def _refuse(self, call, text, kind=ValueError):
        self._comm.coalesced = None  # torch does not end a block that an error leaves
        raise kind(f'{self._comm.who()}: {call}: {text}')

    def _source(self, call, tensor):
        """Returns `tensor`, or a contiguous copy of it."""
        if _plain(tensor):
            return tensor
        self._check(call, tensor)
        return tensor.resolve_conj().resolve_neg().contiguous()

    def _target(self, call, tensor):
        """Returns `tensor`, or a contiguous tensor of its shape. _back() then copies its contents
        to `tensor`."""
        if _plain(tensor):
            return tensor
        self._check(call, tensor)
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)

    def _check(self, call, tensor):
        if not _carried(tensor):
            self._refuse(
                call,
                f'a tensor is on {tensor.device}; FSCCL carries memory of the host and of CUDA '
                f'devices. Name a '
                "backend for that device, as in init_process_group('cpu:fsccl,xpu:xccl').",
            )
        if tensor.layout is not torch.strided:
            self._refuse(
                call,
                f'a tensor has layout {tensor.layout}; only all_reduce takes sparse tensors, of '
                f'layout {torch.sparse_coo}: convert it with to_dense() or to_sparse()',
            )

    @staticmethod
    def _apart(source, target, place=None):
        """Returns `source`, or a copy of it if it overlaps `target` elsewhere than in the in-place
        form, in which it begins `place` elements behind the begin of `target`. Negative elements
        mean that `target` is in `source`. FSCCL accepts no other overlap."""
        begin, at = target.data_ptr(), source.data_ptr()
        if at >= begin + target.nbytes or begin >= at + source.nbytes:
            return source
        if place is not None and at == begin + place * target.element_size():
            return source
        return source.clone()

    @staticmethod
    def _back(target, tensor):
        return None if target is tensor else functools.partial(tensor.copy_, target)

    def _before(self, parts):
        """Returns the number of elements of the parts of the ranks before this one."""
        return sum(part.numel() for part in parts[: self._rank])

    def _moved(self, call, dtype, *others):
        for other in others:
            if other != dtype:
                self._refuse(
                    call, f'tensors of one call have one dtype, not {dtype} and {other}', TypeError
                )
        try:
            return MOVED[dtype]
        except TypeError as error:
            self._refuse(call, error, TypeError)

    def _reduction(self, call, opts, dtype, *others):
        self._moved(call, dtype, *others)
        try:
            return reduction(opts.reduceOp, dtype)
        except TypeError as error:
            self._refuse(call, error, TypeError)

    def _one(self, call, tensors):
        if len(tensors) != 1:
            self._refuse(call, f'{len(tensors)} tensors: one per process')
        return tensors[0]

    def _parts(self, call, tensors):
        if len(tensors) != self._size:
            self._refuse(call, f'the list has {len(tensors)} tensors, the group {self._size} ranks')
        return tensors

    def _same(self, call, tensor, others):
        for other in others:
            if other.numel() != tensor.numel():
                self._refuse(
                    call,
                    f'all tensors have the same number of elements, not {tensor.numel()} and '
                    f'{other.numel()}',
                )

    def _pieces(self, call, outputs):
        """Returns a contiguous tensor for all `outputs`, and a function that copies it to them, or
        None."""
        target = _adjacent(outputs)
        if target is not None:
            return target, None
        for output in outputs:
            self._check(call, output)
        target = torch.empty(
            sum(output.numel() for output in outputs),
            dtype=outputs[0].dtype,
            device=outputs[0].device,
        )
        return target, functools.partial(_unpack, target, outputs)

    def _packed(self, call, inputs):
        """Returns a contiguous tensor with the contents of all `inputs`."""
        source = _adjacent(inputs)
        return (
            source
            if source is not None
            else torch.cat([self._source(call, input).reshape(-1) for input in inputs])
        )

    def _list(self, call, function, entries, arguments, keep, result, backs, opts):
        backs = [back for back in backs if back]
        finish = functools.partial(_run_all, backs) if backs else None
        return self._comm.submit(
            call,
            function,
            (tensor_list(entries), len(entries), *arguments),
            keep,
            list(result),
            finish,
            blocking(opts),
        )

    def _exchange(self, call, source, sent, target, received, code, result, finish, opts):
        return self._comm.submit(
            call,
            c.lib.fsccl_all_to_all_v,
            (
                source.data_ptr(),
                counts_of(*sent),
                _begins(*sent),
                target.data_ptr(),
                counts_of(*received),
                _begins(*received),
                code,
            ),
            (source, target),
            result,
            finish,
            blocking(opts),
        )
