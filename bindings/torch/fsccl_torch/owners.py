# SPDX-License-Identifier: Apache-2.0
"""Deals whole tensors out to ranks, for optimizers that need whole matrices (Muon, SOAP).

Owners gives each tensor to one rank, so that no tensor is cut and all ranks own about as many
elements. In FSCCL this is the ragged layout, whose block is a whole tensor. If every rank has the
whole model, reduce() sums the gradients to their owners in one operation, and share() sends the
owners' tensors to all ranks. For the row shards of FSDP2, collect() and distribute() do the same,
each in one all-to-all.
"""

import math

import torch
import torch.distributed as dist

from . import _capi as c
from .backend import FscclBackend
from .dtypes import MOVED
from .operands import counts_of, tensor_list
from .stats import count


def _owners_of(shapes, ranks):
    """Returns the owner of each shape, and the figures of the layout."""
    params = (c.Param * len(shapes))()
    for param, shape in zip(params, shapes):
        if not shape or 0 in shape:
            raise ValueError(f'fsccl_torch.Owners: a tensor of shape {tuple(shape)} has no rows')
        rows, columns = math.prod(shape[:-1]), shape[-1]
        param.dims, param.dtype, param.tied_to = 2, c.FLOAT32, -1
        param.shape[:2] = (rows, columns)
        param.block_rows, param.block_columns = rows, columns
    pieces, stats = (c.Piece * (ranks * len(shapes)))(), c.LayoutStats()
    c.check(
        c.lib.fsccl_layout_plan(
            c.LAYOUT_RAGGED, params, len(shapes), ranks, c.ALL_RANKS, pieces, stats
        )
    )
    owners = [
        next(rank for rank in range(ranks) if pieces[rank * len(shapes) + i].count)
        for i in range(len(shapes))
    ]
    return owners, stats


class Owners:
    """Decides which rank of `group` owns which of the tensors. All ranks decide the same, because
    only the shapes of the tensors are used (for DTensors the shapes of the whole tensors).
    `owner[i]` is the rank in the group that owns tensors[i], and `owned` lists the indices that
    this rank owns. `largest` is the largest number of elements that a rank owns. No distribution
    can have a smaller one than `bound`."""

    def __init__(self, tensors, group=None):
        self._group = group if group is not None else dist.group.WORLD
        self._ranks, self._rank = self._group.size(), self._group.rank()
        self._shapes = [tuple(tensor.shape) for tensor in tensors]
        self.owner, figures = _owners_of(self._shapes, self._ranks)
        self.owned = [i for i, rank in enumerate(self.owner) if rank == self._rank]
        self.largest = figures.largest_shard
        self.bound = (figures.elements + figures.padding_bound) // self._ranks
        self._counts = {}

    # ----------------------------------------------------------------------------------------------
    # tensors that every rank has whole ----

    def reduce(self, tensors, average=True):
        """Sums or averages each tensor over the ranks, in place on its owner. On other ranks the
        tensor does not change. Collective; waits for completion."""
        op = c.Op(c.OP_AVG if average else c.OP_SUM, 0, 1.0)
        self._run('reduce to owners', c.lib.fsccl_reduce_scatter_list, tensors, op)

    def share(self, tensors):
        """Copies each tensor from its owner to all ranks, in place. Collective; waits for
        completion."""
        self._run('share by owners', c.lib.fsccl_all_gather_list, tensors)

    def _run(self, call, function, tensors, *more):
        tensors = self._checked(call, tensors)
        backend = self._group._get_backend(tensors[0].device)
        if not isinstance(backend, FscclBackend):
            raise ValueError(
                f'fsccl_torch.Owners: {call}: the group is on {type(backend).__name__}: '
                f'make it with backend="fsccl"'
            )
        entries = [
            (tensor.data_ptr(), tensor.data_ptr(), self._counts_of(i, per), code)
            for i, tensor in enumerate(tensors)
            for code, per in [MOVED[tensor.dtype]]
        ]
        count(call, *tensors)
        backend._comm.submit(
            call, function, (tensor_list(entries), len(entries), *more), tensors, []
        ).wait()

    def _counts_of(self, i, per):
        """Returns the elements of FSCCL that each rank has of tensor i, if each element of the
        tensor is `per` of them."""
        if (i, per) not in self._counts:
            count = per * math.prod(self._shapes[i])
            self._counts[i, per] = counts_of(
                *(count if rank == self.owner[i] else 0 for rank in range(self._ranks))
            )
        return self._counts[i, per]

    def _checked(self, call, tensors):
        tensors = [tensor.detach() for tensor in tensors]
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if shapes != self._shapes:
            raise ValueError(f'fsccl_torch.Owners: {call}: other shapes than Owners() was given')
        if not all(tensor.is_contiguous() for tensor in tensors):
            raise ValueError(f'fsccl_torch.Owners: {call}: a tensor is not contiguous')
        return tensors

    # ----------------------------------------------------------------------------------------------
    # shards of FSDP2 ----

    def collect(self, parts):
        """Returns {index: whole tensor} for the tensors that this rank owns. `parts` has this
        rank's rows of each tensor, all of one dtype and cut as torch.chunk cuts them. These are the
        to_local() of DTensors that FSDP2 shards along dimension 0. Collective."""
        parts = [part.detach().reshape(-1) for part in parts]
        self._check_parts(parts)
        sent = [
            [part for part, owner in zip(parts, self.owner) if owner == rank]
            for rank in range(self._ranks)
        ]
        splits = [[self._size(i, rank) for i in self.owned] for rank in range(self._ranks)]
        received = self._exchange(sent, [sum(sizes) for sizes in splits], parts[0])
        runs = [run.split(sizes) for run, sizes in zip(received, splits)]
        return {
            i: torch.cat([run[k] for run in runs]).view(self._shapes[i])
            for k, i in enumerate(self.owned)
        }

    def distribute(self, wholes, like):
        """Returns this rank's rows of each tensor, in the order of the tensors. This is the reverse
        of collect(). `wholes` is {index: whole tensor} for the tensors that this rank owns. `like`
        is any tensor of their dtype and device, which is needed because a rank may own nothing.
        Collective."""
        cut = [
            wholes[i].reshape(-1).split([self._size(i, rank) for rank in range(self._ranks)])
            for i in self.owned
        ]
        sent = [[pieces[rank] for pieces in cut] for rank in range(self._ranks)]
        theirs = [
            [i for i, owner in enumerate(self.owner) if owner == rank]
            for rank in range(self._ranks)
        ]
        sizes = [[self._size(i, self._rank) for i in of_rank] for of_rank in theirs]
        received = self._exchange(sent, [sum(of_rank) for of_rank in sizes], like)
        parts = [None] * len(self._shapes)
        for run, of_rank, numels in zip(received, theirs, sizes):
            for i, part in zip(of_rank, run.split(numels)):
                parts[i] = part.view(-1, *self._shapes[i][1:])
        return parts

    def _size(self, i, rank):
        """Returns the number of elements in the rows of tensor i that a rank has."""
        rows, *rest = self._shapes[i]
        each = -(-rows // self._ranks)
        return min(each, max(0, rows - rank * each)) * math.prod(rest)

    def _check_parts(self, parts):
        for i, part in enumerate(parts):
            if part.numel() != self._size(i, self._rank) or part.dtype != parts[0].dtype:
                raise ValueError(
                    f'fsccl_torch.Owners: collect: part {i} has {part.numel()} elements of '
                    f'{part.dtype}; this rank has {self._size(i, self._rank)} of it, and all are '
                    f'of one dtype'
                )

    def _exchange(self, sent, sizes, like):
        """Sends lists of flat tensors to ranks, and returns what each rank sent to this one. `sent`
        has a list for each rank."""
        flat = [piece for of_rank in sent for piece in of_rank]
        source = torch.cat(flat) if flat else like.new_empty(0)
        target = source.new_empty(sum(sizes))
        counts = [sum(piece.numel() for piece in of_rank) for of_rank in sent]
        dist.all_to_all_single(target, source, sizes, counts, group=self._group)
        return target.split(sizes)
