# SPDX-License-Identifier: Apache-2.0
"""The collectives that reduce. Names and arguments are those of c10d."""

import torch

from . import _capi as c
from . import sparse
from .base import blocking
from .operands import Operands, counts_of, dealt_out, tensor_list
from .stats import count

_lib = c.lib


class Reducing(Operands):
    def allreduce(self, tensors, opts):
        call = 'all_reduce'
        tensor = self._one(call, tensors)
        if tensor.is_sparse:
            return sparse.all_reduce(self, tensor, opts)
        how = self._reduction(call, opts, tensor.dtype)
        source = self._source(call, tensor)
        count(call, source)
        if how.combine:
            rows = torch.empty(
                (self._size, *source.shape), dtype=source.dtype, device=source.device
            )
            return self._comm.submit(
                call,
                _lib.fsccl_all_gather,
                (source.data_ptr(), rows.data_ptr(), source.numel() * how.per, how.code),
                (source, rows),
                tensors,
                lambda: tensor.copy_(how.combine(rows)),
                blocking(opts),
            )
        address = source.data_ptr()
        return self._comm.submit(
            call,
            _lib.fsccl_all_reduce,
            (address, address, source.numel() * how.per, how.code, how.op),
            source,
            tensors,
            self._back(source, tensor),
            blocking(opts),
        )

    allreduce_sparse = allreduce

    def allreduce_coalesced(self, tensors, opts):
        """Reduces a list of tensors in place, in two operations whatever its length. In the first
        each rank reduces its part of every tensor, in the second the parts are gathered."""
        call = 'all_reduce_coalesced'
        scattered, gathered, keep, backs = [], [], [], []
        for tensor in tensors:
            how = self._reduction(call, opts, tensor.dtype)
            if how.combine:
                return self._each(self.allreduce, tensors, opts)
            source = self._source(call, tensor)
            parts = dealt_out(source.numel() * how.per, self._size)
            address = source.data_ptr()
            mine = address + sum(parts[: self._rank]) * (source.element_size() // how.per)
            scattered.append((address, mine, parts, how.code))
            gathered.append((mine, address, parts, how.code))
            keep.append(source)
            backs.append(self._back(source, tensor))
        if not keep:
            return self.barrier(opts)
        count(call, *keep)
        self._comm.submit(
            call,
            _lib.fsccl_reduce_scatter_list,
            (tensor_list(scattered), len(scattered), how.op),
            keep,
            [],
        )
        return self._list(
            call, _lib.fsccl_all_gather_list, gathered, (), keep, tensors, backs, opts
        )

    def _each(self, function, tensors, opts):
        return self._comm.together([function([tensor], opts) for tensor in tensors])

    def reduce(self, tensors, opts):
        call = 'reduce'
        tensor, root = self._one(call, tensors), opts.rootRank
        how, source = self._reduction(call, opts, tensor.dtype), self._source(call, tensor)
        count(call, source)
        if how.combine:
            rows = torch.empty(
                (self._size if self._rank == root else 0, *source.shape),
                dtype=source.dtype,
                device=source.device,
            )
            finish = (lambda: tensor.copy_(how.combine(rows))) if self._rank == root else None
            return self._comm.submit(
                call,
                _lib.fsccl_gather,
                (source.data_ptr(), rows.data_ptr(), source.numel() * how.per, how.code, root),
                (source, rows),
                tensors,
                finish,
                blocking(opts),
            )
        finish = self._back(source, tensor) if self._rank == root else None
        address = source.data_ptr()
        return self._comm.submit(
            call,
            _lib.fsccl_reduce,
            (address, address, source.numel() * how.per, how.code, how.op, root),
            source,
            tensors,
            finish,
            blocking(opts),
        )

    def reduce_scatter_single(self, output, input, opts):
        call = 'reduce_scatter_single'
        how = self._reduction(call, opts, input.dtype, output.dtype)
        source, target = self._source(call, input), self._target(call, output)
        elements = target.numel()
        if source.numel() != elements * self._size:
            self._refuse(
                call,
                f'the input has {source.numel()} elements; {self._size} ranks with outputs of '
                f'{elements} need '
                f'{elements * self._size}',
            )
        count(call, source)
        if how.combine:
            return self._reduce_parts(call, source, output, [elements] * self._size, how, opts)
        source = self._apart(source, target, -self._rank * elements)
        return self._comm.submit(
            call,
            _lib.fsccl_reduce_scatter,
            (source.data_ptr(), target.data_ptr(), elements * how.per, how.code, how.op),
            (source, target),
            [output],
            self._back(target, output),
            blocking(opts),
        )

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        call = 'reduce_scatter_single_coalesced'
        entries, keep, backs = [], [], []
        for output, input in zip(outputs, inputs, strict=True):
            how = self._reduction(call, opts, input.dtype, output.dtype)
            if how.combine:
                return self._comm.together(
                    [self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs)]
                )
            source, target = self._source(call, input), self._target(call, output)
            if source.numel() != target.numel() * self._size:
                self._refuse(
                    call,
                    f"an input has {source.numel()} elements, not {self._size} times its output's "
                    f'{target.numel()}',
                )
            source = self._apart(source, target, -self._rank * target.numel())
            entries.append(
                (
                    source.data_ptr(),
                    target.data_ptr(),
                    counts_of(*[target.numel() * how.per] * self._size),
                    how.code,
                )
            )
            keep += (source, target)
            backs.append(self._back(target, output))
        if not entries:
            return self.barrier(opts)
        count(call, *keep[::2])
        return self._list(
            call, _lib.fsccl_reduce_scatter_list, entries, (how.op,), keep, outputs, backs, opts
        )

    def reduce_scatter(self, outputs, inputs, opts):
        call = 'reduce_scatter'
        output, parts = self._one(call, outputs), self._parts(call, self._one(call, inputs))
        how = self._reduction(call, opts, output.dtype, *(part.dtype for part in parts))
        counts = [part.numel() for part in parts]
        if output.numel() != counts[self._rank]:
            self._refuse(
                call,
                f"the output has {output.numel()} elements, this rank's part of the input "
                f'{counts[self._rank]}',
            )
        source, target = self._packed(call, parts), self._target(call, output)
        count(call, source)
        if how.combine:
            return self._reduce_parts(call, source, output, counts, how, opts)
        source = self._apart(source, target, -self._before(parts))
        return self._comm.submit(
            call,
            _lib.fsccl_reduce_scatter_v,
            (
                source.data_ptr(),
                target.data_ptr(),
                counts_of(*(n * how.per for n in counts)),
                how.code,
                how.op,
            ),
            (source, target),
            [output],
            self._back(target, output),
            blocking(opts),
        )

    def _reduce_parts(self, call, source, output, counts, how, opts):
        """Sends each rank its part of every rank's input, and reduces it there in torch."""
        rows = torch.empty((self._size, *output.shape), dtype=output.dtype, device=output.device)
        return self._exchange(
            call,
            source,
            [n * how.per for n in counts],
            rows,
            [output.numel() * how.per] * self._size,
            how.code,
            [output],
            lambda: output.copy_(how.combine(rows)),
            opts,
        )
