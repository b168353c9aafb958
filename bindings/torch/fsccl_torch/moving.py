# SPDX-License-Identifier: Apache-2.0
"""The collectives that move data without reducing it: gathers, scatter, broadcast, all-to-all, and
barrier. Names and arguments are those of c10d."""

from . import _capi as c
from . import streams
from .base import blocking
from .operands import Operands, counts_of
from .stats import count

_lib = c.lib


class Moving(Operands):
    def all_gather_single(self, output, input, opts):
        call = 'all_gather_single'
        source, target = self._source(call, input), self._target(call, output)
        code, per = self._moved(call, input.dtype, output.dtype)
        elements = source.numel()
        if target.numel() != elements * self._size:
            self._refuse(
                call,
                f'the output has {target.numel()} elements; {self._size} ranks with {elements} '
                f'each need '
                f'{elements * self._size}',
            )
        count(call, target)
        source = self._apart(source, target, self._rank * elements)
        return self._comm.submit(
            call,
            _lib.fsccl_all_gather,
            (source.data_ptr(), target.data_ptr(), elements * per, code),
            (source, target),
            [output],
            self._back(target, output),
            blocking(opts),
        )

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        call = 'all_gather_single_coalesced'
        entries, keep, backs = [], [], []
        for output, input in zip(outputs, inputs, strict=True):
            source, target = self._source(call, input), self._target(call, output)
            code, per = self._moved(call, input.dtype, output.dtype)
            if target.numel() != source.numel() * self._size:
                self._refuse(
                    call,
                    f"an output has {target.numel()} elements, not {self._size} times its input's "
                    f'{source.numel()}',
                )
            source = self._apart(source, target, self._rank * source.numel())
            entries.append(
                (
                    source.data_ptr(),
                    target.data_ptr(),
                    counts_of(*[source.numel() * per] * self._size),
                    code,
                )
            )
            keep += (source, target)
            backs.append(self._back(target, output))
        count(call, *keep[1::2])
        return self._list(call, _lib.fsccl_all_gather_list, entries, (), keep, outputs, backs, opts)

    def allgather(self, outputs, inputs, opts):
        call = 'all_gather'
        input, outputs = self._one(call, inputs), self._parts(call, self._one(call, outputs))
        source = self._source(call, input)
        code, per = self._moved(call, input.dtype, *(output.dtype for output in outputs))
        if outputs[self._rank].numel() != source.numel():
            self._refuse(
                call,
                f"this rank's place in the list has {outputs[self._rank].numel()} elements, its "
                f'tensor '
                f'{source.numel()}',
            )
        counts = [output.numel() * per for output in outputs]
        target, finish = self._pieces(call, outputs)
        source = self._apart(source, target, self._before(outputs))
        count(call, target)
        return self._comm.submit(
            call,
            _lib.fsccl_all_gather_v,
            (source.data_ptr(), target.data_ptr(), counts_of(*counts), None, code),
            (source, target),
            outputs,
            finish,
            blocking(opts),
        )

    def allgather_coalesced(self, output_lists, inputs, opts):
        call = 'all_gather_coalesced'
        entries, keep, backs = [], [], []
        for index, input in enumerate(inputs):
            source, outputs = (
                self._source(call, input),
                [outputs[index] for outputs in self._parts(call, output_lists)],
            )
            code, per = self._moved(call, input.dtype, *(output.dtype for output in outputs))
            target, back = self._pieces(call, outputs)
            source = self._apart(source, target, self._before(outputs))
            entries.append(
                (
                    source.data_ptr(),
                    target.data_ptr(),
                    counts_of(*(output.numel() * per for output in outputs)),
                    code,
                )
            )
            keep += (source, target)
            backs.append(back)
        count(call, *keep[1::2])
        result = [output for outputs in output_lists for output in outputs]
        return self._list(call, _lib.fsccl_all_gather_list, entries, (), keep, result, backs, opts)

    def gather(self, outputs, inputs, opts):
        call = 'gather'
        source = self._source(call, self._one(call, inputs))
        target, finish, result = None, None, []
        if self._rank == opts.rootRank:
            result = self._parts(call, self._one(call, outputs))
            self._same(call, source, result)
            target, finish = self._pieces(call, result)
            source = self._apart(source, target, self._before(result))
        code, per = self._moved(call, source.dtype, *(output.dtype for output in result))
        count(call, source if target is None else target)
        return self._comm.submit(
            call,
            _lib.fsccl_gather,
            (
                source.data_ptr(),
                None if target is None else target.data_ptr(),
                source.numel() * per,
                code,
                opts.rootRank,
            ),
            (source, target),
            result,
            finish,
            blocking(opts),
        )

    def scatter(self, outputs, inputs, opts):
        call = 'scatter'
        output = self._one(call, outputs)
        target, source = self._target(call, output), None
        code, per = self._moved(call, output.dtype)
        if self._rank == opts.rootRank:
            parts = self._parts(call, self._one(call, inputs))
            self._same(call, target, parts)
            self._moved(call, output.dtype, *(part.dtype for part in parts))
            source = self._apart(self._packed(call, parts), target, -self._before(parts))
        count(call, target)
        return self._comm.submit(
            call,
            _lib.fsccl_scatter,
            (
                None if source is None else source.data_ptr(),
                target.data_ptr(),
                target.numel() * per,
                code,
                opts.rootRank,
            ),
            (source, target),
            [output],
            self._back(target, output),
            blocking(opts),
        )

    def broadcast(self, tensors, opts):
        call, root = 'broadcast', opts.rootRank
        sources = [self._source(call, tensor) for tensor in tensors]
        backs = [
            self._back(*pair) if self._rank != root else None for pair in zip(sources, tensors)
        ]
        count(call, *sources)
        if len(tensors) == 1:
            code, per = self._moved(call, tensors[0].dtype)
            return self._comm.submit(
                call,
                _lib.fsccl_broadcast,
                (sources[0].data_ptr(), sources[0].numel() * per, code, root),
                sources,
                tensors,
                backs[0],
                blocking(opts),
            )
        entries = []
        for source in sources:
            code, per = self._moved(call, source.dtype)
            entries.append((None, source.data_ptr(), counts_of(source.numel() * per), code))
        return self._list(
            call, _lib.fsccl_broadcast_list, entries, (root,), sources, tensors, backs, opts
        )

    def all_to_all_single(self, output, input, output_splits, input_splits, opts):
        call = 'all_to_all_single'
        source, target = self._source(call, input), self._target(call, output)
        code, per = self._moved(call, input.dtype, output.dtype)
        source = self._apart(source, target)
        count(call, target)
        if output_splits or input_splits:
            sent, received = (
                self._splits(call, source, input_splits, per),
                self._splits(call, target, output_splits, per),
            )
            return self._exchange(
                call,
                source,
                sent,
                target,
                received,
                code,
                [output],
                self._back(target, output),
                opts,
            )
        if source.numel() != target.numel() or source.numel() % self._size:
            self._refuse(
                call,
                f'input and output have {source.numel()} and {target.numel()} elements: they must '
                f'be equal, and '
                f'divisible by the {self._size} ranks, unless split sizes are given',
            )
        return self._comm.submit(
            call,
            _lib.fsccl_all_to_all,
            (source.data_ptr(), target.data_ptr(), source.numel() // self._size * per, code),
            (source, target),
            [output],
            self._back(target, output),
            blocking(opts),
        )

    def _splits(self, call, tensor, splits, per):
        """Returns the number of elements for each rank. `splits` counts rows."""
        rows = tensor.size(0) if tensor.dim() else 1
        splits = list(splits) or [rows // self._size] * self._size
        if any(split < 0 for split in splits):
            self._refuse(call, f'split sizes {splits}: none may be negative')
        if len(splits) != self._size or sum(splits) != rows:
            self._refuse(
                call, f'split sizes {splits} do not divide {rows} rows among {self._size} ranks'
            )
        row = tensor.numel() // rows * per if rows else 0
        return [split * row for split in splits]

    def alltoall(self, outputs, inputs, opts):
        call = 'all_to_all'
        self._parts(call, inputs)
        self._parts(call, outputs)
        code, per = self._moved(
            call, inputs[0].dtype, *(tensor.dtype for tensor in (*inputs, *outputs))
        )
        target, finish = self._pieces(call, outputs)
        source = self._apart(self._packed(call, inputs), target)
        count(call, target)
        return self._exchange(
            call,
            source,
            [part.numel() * per for part in inputs],
            target,
            [part.numel() * per for part in outputs],
            code,
            outputs,
            finish,
            opts,
        )

    def barrier(self, opts):
        count('barrier')
        if getattr(opts, 'device', None) is not None and streams.on_gpu(opts.device):
            self._comm.drain(opts.device)
        return self._comm.submit('barrier', _lib.fsccl_barrier, (), None, [], None, blocking(opts))
