# SPDX-License-Identifier: Apache-2.0
"""The gather of an FSDPParamGroup by units: it is submitted, opened and closed.

A group has one unit, or two if some of its parameters are frozen. The frozen ones stay gathered, in
a unit of their own, until something on the communicator was trained: an optimizer's step is where
programs also write to frozen parameters (for example a teacher that follows its student). The
version counters of tensors show such writes, except for writes through `.data`.
"""

from typing import NamedTuple

import torch
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

from . import _capi as c
from . import streams
from .codecs import gather_codec
from .fsdp2_reduction import unit_shape
from .stats import count_bytes
from .unit import Parameters, SlotView, Users

_ALIGNMENT = 64  # bytes; each parameter in a slot begins at a multiple of it
_WORTH_A_UNIT = 64 << 10  # if there are fewer bytes of frozen parameters, they get no unit


class Settings(NamedTuple):
    """The arguments of enable()."""

    keep_bytes: int
    keep_frozen_bytes: int | None  # None: all in host memory, none on a GPU
    gather_codec: str | None
    reduce_codec: str | None

    def keeps_frozen(self, so_far, more, on_gpu):
        """Returns whether `more` bytes of frozen parameters stay gathered, when `so_far` bytes
        already do."""
        limit = 0 if on_gpu else None
        if self.keep_frozen_bytes is not None:
            limit = self.keep_frozen_bytes
        return more >= _WORTH_A_UNIT and (limit is None or so_far + more <= limit)


def gathers_of(fsdp, comm, domain, settings, on_gpu):
    """Returns the Gathers of an initialized group: one of all parameters, or one of the frozen ones
    and one of the others."""
    params, wire = (
        fsdp.fsdp_params,
        fsdp.fsdp_params[0].param_dtype or fsdp.fsdp_params[0].orig_dtype,
    )
    frozen = [param for param in params if not param.sharded_param.requires_grad]
    size = sum(-(-_bytes(param, wire) // _ALIGNMENT) * _ALIGNMENT for param in frozen)
    if not settings.keeps_frozen(comm.pool_of(fsdp.device).frozen_bytes(), size, on_gpu):
        return [Gather(fsdp, params, comm, domain, settings)]
    others = [param for param in params if param.sharded_param.requires_grad]
    return [
        Gather(fsdp, frozen, comm, domain, settings, frozen_bytes=size),
        *([Gather(fsdp, others, comm, domain, settings)] if others else []),
    ]


def _bytes(param, dtype):
    return param._orig_size.numel() * dtype.itemsize


class Gather:
    """The gather of some parameters of a group by one unit. If `frozen_bytes` is not 0, all of them
    are frozen and stay gathered, and they take so many bytes."""

    def __init__(self, fsdp, params, comm, domain, settings, frozen_bytes=0):
        wire = params[0].param_dtype or params[0].orig_dtype
        self._params, self._domain, self.frozen = params, domain, frozen_bytes > 0
        self._device = fsdp.device
        self._bytes = sum(_bytes(param, wire) for param in params)
        users = Users()
        self._views = [_view(param, wire, comm.size, fsdp.device, users) for param in params]
        self._shards = [param._sharded_param_data for param in params]
        self._places = self._present_places()
        if self.frozen:
            keep, budget, codec = c.KEEP_ALWAYS, 0, None
        else:  # the pool's budget also counts what is kept of frozen parameters
            keep = c.KEEP_BUDGET if settings.keep_bytes else c.KEEP_NONE
            budget = settings.keep_bytes + comm.pool_of(fsdp.device).frozen_bytes()
            codec = gather_codec(settings.gather_codec, wire, streams.on_gpu(fsdp.device))
        self.unit = Parameters(
            comm,
            fsdp._module_fqn or 'root',
            [unit_shape(param) for param in params],
            self._shards,
            wire,
            (keep, budget),
            users,
            codec,
        )
        self.unit.watch([param.sharded_param for param in params])
        self.unit.promise(any(p.sharded_param.requires_grad for p in params), frozen_bytes)
        self._cut_otherwise = [
            (view, param)
            for view, param in zip(self._views, params)
            if param.fsdp_placement.dim != 0
        ]
        self.forget()

    def forget(self):
        """Makes the next gather move all bytes, because those that the unit has kept are of an
        earlier step."""
        self._versions = self._trained = None

    def issue(self, state):
        """Submits the gather."""
        places = self._present_places()
        if places != self._places:  # a checkpoint was loaded by assignment, or the model moved
            self._shards = [param._sharded_param_data for param in self._params]
            self.unit.set_shards(self._shards)
            self.unit.watch([param.sharded_param for param in self._params])
            self._places = places
        if self._is_changed(state):
            self.unit.mark_changed()
            count_bytes('unshard', self._bytes)
        else:
            count_bytes('unshard_kept' if self.frozen else 'unshard', self._bytes)
        self.unit.unshard()

    def _present_places(self):
        return [(id(p.sharded_param), p._sharded_param_data.data_ptr()) for p in self._params]

    def _is_changed(self, state):
        """Returns whether the shards must be gathered even if the slot was kept. A write through
        `.data` leaves no trace in a version. Therefore kept bytes are used in two cases only: those
        that forward gathered serve backward, and frozen ones serve forward as long as nothing was
        trained."""
        versions = self.unit.versions()
        before, self._versions = self._versions, versions
        if state == TrainingState.PRE_BACKWARD:
            return versions != before
        if not self.frozen or any(param.sharded_param.requires_grad for param in self._params):
            return True
        trained, self._trained = self._trained, self._domain.trained(self._device)
        return versions != before or self._trained is None or self._trained is not trained

    def open(self):
        """Waits for the gather and puts the slot behind the parameters."""
        for view, address in zip(self._views, self.unit.wait()):
            view.open(address)
        for view, param in self._cut_otherwise:
            _assemble(view.tensor, param)

    def close(self):
        for view in self._views:
            view.close()

    def reshard(self, stream=None):
        """Gives the slot back. On a GPU it may be reused after what `stream` was given so far."""
        if stream is not None:
            self.unit.use(stream)
        self.unit.reshard()


def _view(param, wire, ranks, device, users):
    """Makes the SlotView of a parameter. The parts of the ranks follow each other in the slot. If
    the parameter is cut along another dimension than the first, _assemble() puts the parts together
    in this rank's own memory, as FSDP2 does, which requires even parts in this case."""

    def empty(size):
        return torch.empty(size, dtype=wire, device=device)

    with torch.inference_mode(False):  # a model may be evaluated under it before it is trained
        if not param.all_gather_outputs:  # made as FSDP2 makes it, which may gather this one, too
            param.all_gather_outputs = [empty(param._sharded_param_data.numel() * ranks)]
        along_first = param.fsdp_placement.dim == 0
        return SlotView(
            param.all_gather_outputs[0] if along_first else empty(param._orig_size.numel()),
            _bytes(param, wire),
            users,
        )


def _assemble(parts, param):
    """Puts the parts of a parameter that is cut along another dimension than the first side by
    side."""
    param.alloc_all_gather_outputs()
    whole, dim = param.all_gather_outputs[0], param.fsdp_placement.dim
    shape = list(param.sharded_size)
    ranks = parts.numel() // max(1, param.sharded_size.numel())
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(whole):
        torch.cat(parts.view([ranks, *shape]).unbind(0), dim=dim, out=whole.view(param._orig_size))
