# SPDX-License-Identifier: Apache-2.0
"""Sends a model's weights to processes outside of its job, which call subscribe() (subscribing.py).
docs/publish.md says how it works.

Each rank publishes the shards that it holds. If a tensor is whole on every rank, a rank publishes
the rows that torch.chunk would give it, so the tensor should be equal on all ranks.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from . import _capi as c
from .backend import FscclBackend
from .dtypes import MOVED

_WIRE = {torch.bfloat16: c.BFLOAT16, torch.float16: c.FLOAT16, None: c.PUBLISH_EXACT}


_MOST_SECONDS = 1e9  # a longer time, also an infinite one, waits as long as this


def whole_ms(seconds: float) -> int:
    return int(1000 * min(max(seconds, 0.0), _MOST_SECONDS))


def milliseconds(timeout: float | None) -> int:
    """Returns a time of the C API, where 0 stands for the default, which is None here."""
    return 0 if timeout is None else max(1, whole_ms(timeout))


def tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def plain_name(name: str) -> str:
    """Returns a tensor's name without what torch.compile() adds to it."""
    return '.'.join(part for part in name.split('.') if part != '_orig_mod')


def _published(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the tensors of a model by the names that they have in the model which DDP and
    torch.compile() wrap."""
    state = tensors(model.state_dict(keep_vars=True))
    wrapped = isinstance(getattr(model, '_orig_mod', model), DistributedDataParallel)
    prefix = 'module.' if wrapped else ''
    plain = {plain_name(name).removeprefix(prefix): value for name, value in state.items()}
    return plain if len(plain) == len(state) else state  # no name stands for two tensors


def sharded_dim(name: str, tensor: DTensor) -> int | None:
    """Returns the dimension of the mesh over which a DTensor is sharded by rows, or None if it is
    whole."""
    sharded = [dim for dim, place in enumerate(tensor.placements) if not place.is_replicate()]
    if len(sharded) > 1 or any(
        place != Shard(0) and not isinstance(place, Replicate) for place in tensor.placements
    ):
        raise ValueError(
            f"fsccl_torch: '{name}' has the placements {tensor.placements}: weights are published "
            'and received as Shard(0) over one dimension of the mesh, and Replicate() over others'
        )
    return sharded[0] if sharded else None


def describe(param: c.Param, name: bytes, tensor: torch.Tensor) -> None:
    code, per = MOVED[tensor.dtype]
    shape = [*tensor.shape] if per == 1 else [*tensor.shape, per]
    if tensor.is_meta or tensor.layout != torch.strided or len(shape) > len(param.shape):
        raise ValueError(
            f"fsccl_torch: '{name.decode()}' is a {tensor.layout} tensor of {tensor.dim()} "
            f'dimensions on {tensor.device}: weights are published and received as dense tensors '
            f'in memory, of at most {len(param.shape)} dimensions'
        )
    param.name, param.dims, param.dtype, param.tied_to = name, len(shape), code, -1
    param.shape[: len(shape)] = shape


def _reals(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor, as reals if it is complex (describe())."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def facts_of(state: Mapping[str, torch.Tensor]) -> list[tuple]:
    """Returns what every version of a publication has alike: for each tensor its name, shape, type
    and sharding, and the index of the first entry that is the same tensor."""
    owners: dict[int, int] = {}
    return [
        (
            name,
            tensor.shape,
            tensor.dtype,
            (tensor.placements, tensor.device_mesh) if isinstance(tensor, DTensor) else None,
            owners.setdefault(id(tensor), index),
        )
        for index, (name, tensor) in enumerate(state.items())
    ]


class _Ranks:
    """The ranks that publish: a group in which rank r has the r-th rows of every tensor. If there
    are several replicas, the first one publishes."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], group: dist.ProcessGroup | None
    ) -> None:
        found: dict[Any, Any] = {}
        self.publishes = True
        for name, tensor in tensors.items():
            dim = sharded_dim(name, tensor) if isinstance(tensor, DTensor) else None
            if dim is None:
                continue
            mesh = tensor.device_mesh
            place = mesh.get_coordinate()
            others = [at for other, at in enumerate(place or ()) if other != dim]
            self.publishes = self.publishes and place is not None and not any(others)
            found[mesh.get_group(dim)] = name
        if len(found) > 1:
            raise ValueError(
                f'fsccl_torch.publish: {" and ".join(map(repr, found.values()))} are sharded over '
                'different groups: publish models whose tensors are sharded over one group'
            )
        self.group = next(iter(found), group or dist.group.WORLD)
        backend = self.group._get_backend(torch.device('cpu'))
        if not isinstance(backend, FscclBackend):
            raise TypeError(
                f"fsccl_torch.publish: the group's backend is {backend.name()}: create it with "
                "'fsccl'"
            )
        self.comm = backend._comm

    def piece(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns this rank's rows, in host memory."""
        tensor = tensor.detach()
        if isinstance(tensor, DTensor):
            whole = all(place.is_replicate() for place in tensor.placements)
            tensor = _reals(tensor.to_local())
            if not whole:
                return tensor.cpu().contiguous()
        tensor = _reals(tensor)
        rows = tensor.shape[0] if tensor.dim() else 1
        each = -(-rows // self.comm.size)
        if not tensor.dim():
            return tensor.reshape(1)[self.comm.rank :].cpu()
        return tensor[self.comm.rank * each : (self.comm.rank + 1) * each].cpu().contiguous()


class Publisher:
    """The object that publish() makes for a model."""

    def __init__(
        self,
        state: Mapping[str, torch.Tensor],
        group: dist.ProcessGroup | None,
        wire_dtype: torch.dtype | None,
        **settings: Any,
    ) -> None:
        ranks = _Ranks(state, group)
        self._handle = ctypes.c_void_p()
        self._ranks, self._facts = ranks, facts_of(state)
        self.closed, self.ticket_due = False, True
        if not ranks.publishes:
            return
        if wire_dtype not in _WIRE:
            raise ValueError(
                f'fsccl_torch.publish: wire_dtype={wire_dtype}: give torch.bfloat16, torch.float16 '
                'or None, which publishes every tensor in its own type'
            )
        params = (c.Param * len(state))()
        for index, ((name, tensor), facts) in enumerate(zip(state.items(), self._facts)):
            describe(params[index], name.encode(), tensor)
            owner = facts[-1]
            params[index].tied_to = -1 if owner == index else owner
        config = c.PublishConfig(
            params=params,
            count=len(state),
            wire_dtype=_WIRE[wire_dtype],
            param_size=ctypes.sizeof(c.Param),
            **settings,
        )
        with ranks.comm.lock:
            status = c.lib.fsccl_publisher_create(
                ctypes.byref(config), ranks.comm.handle, ctypes.byref(self._handle)
            )
            if status < 0:
                raise ranks.comm.failure(status, 'publish')
        # Where nobody closes it, the publication ends with this object, and its memory and port
        # are free.
        self._end = weakref.finalize(self, c.lib.fsccl_publisher_destroy, self._handle)
        self._end.atexit = False

    def publish(self, read: Callable[[], Mapping[str, torch.Tensor]], label: int) -> None:
        """Publishes what `read` returns. A call that fails counts as a version, whatever fails, so
        that this rank's versions stay those of the other ranks."""
        places = (ctypes.c_void_p * len(self._facts))()
        status = 0
        try:
            state = read()
            self._check(state)
            if self._handle:
                pieces = [self._ranks.piece(tensor) for tensor in state.values()]
                places[:] = [piece.data_ptr() or None for piece in pieces]
        finally:
            if self._handle:  # after an error all addresses are NULL, so this fails and counts
                status = c.lib.fsccl_publish(self._handle, places, label)
        c.check(status)

    def _check(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raises ValueError if the library would read other memory than that of the tensors."""
        for one, before in itertools.zip_longest(facts_of(state), self._facts):
            if one != before:
                raise ValueError(
                    f"fsccl_torch.publish: '{(before or one)[0]}' is not what was published first: "
                    'the names, shapes, types, ties and shardings of the tensors stay the same. To '
                    'publish others, call close() on all ranks, and then publish()'
                )

    @property
    def ticket(self) -> bytes:
        """Returns what a subscriber needs, or b'' on ranks that do not publish. Whoever has the
        ticket can subscribe, so send it over a channel that you trust."""
        if not self._handle:
            return b''
        made = c.UniqueId()
        c.check(c.lib.fsccl_publisher_ticket(self._handle, ctypes.byref(made)))
        return bytes(made.bytes)

    def write_ticket(self, path: str | os.PathLike[str]) -> None:
        """Writes the ticket to `path` on rank 0. Only this user can read the file."""
        if not self._handle or self._ranks.comm.rank:
            return
        path = Path(path)
        # The file is new, so nobody else has it open or may read it.
        descriptor, part = tempfile.mkstemp(prefix=f'{path.name}.', dir=path.parent)
        try:
            with open(descriptor, 'wb') as file:
                file.write(self.ticket)
            Path(part).replace(path)
            self.ticket_due = False
        except BaseException:
            Path(part).unlink()
            raise

    def report(self) -> dict[str, Any]:
        """Returns the fields of fsccl_publish_report_t, or {} on ranks that do not publish."""
        report = c.PublishReport()
        if not self._handle:
            return {}
        c.check(c.lib.fsccl_publisher_report(self._handle, ctypes.byref(report)))
        return report.figures()

    def close(self) -> None:
        """Ends this rank's part when subscribers have its last version, or after `linger`
        seconds. The next publish() of the model makes a new publication. Ctrl-C ends the wait; the
        rank's part then ends by itself."""
        self.closed = True
        handle, self._handle = self._handle, ctypes.c_void_p()
        if not handle:
            return
        self._end.detach()
        errors: list[BaseException] = []

        def end() -> None:
            try:
                c.check(c.lib.fsccl_publisher_destroy(handle))
            except c.FscclError as error:
                errors.append(error)

        thread = threading.Thread(target=end, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends, and some releases start no thread then
            end()
        else:
            thread.join()  # unlike a call of the library, it ends with Ctrl-C
        if errors:
            raise errors[0]


_publishers: weakref.WeakKeyDictionary[torch.nn.Module, Publisher] = weakref.WeakKeyDictionary()


def publish(
    model: torch.nn.Module,
    label: int = 0,
    *,
    ticket: str | os.PathLike[str] | None = None,
    group: dist.ProcessGroup | None = None,
    wire_dtype: torch.dtype | None = torch.bfloat16,
    limit_bytes: int = 0,
    timeout: float | None = None,
    linger: float = 2.0,
    port: int = 0,
) -> Publisher:
    """Publishes the parameters and persistent buffers of `model` as they are now, with a number
    that the caller chooses, such as the step. Each rank calls it after optimizer.step(). Nothing is
    gathered, and it does not wait for subscribers.

    The first call, and the first after Publisher.close(), makes the publication, which is
    collective, and takes the other arguments:

    ticket: a file that rank 0 writes for subscribers, once. Only this user can read it.

    group: the ranks, if no tensor is a DTensor (FSDP2), from which they would follow. Its backend
    is 'fsccl'.

    wire_dtype: the type in which float32 and float64 are published. None publishes every tensor
    exactly as it is.

    limit_bytes: the most bytes that this rank holds for slow subscribers, beside a copy of its
    shards. With 0 it is as much as that copy, at least 16 MiB.

    timeout: a subscriber that takes less than 256 KiB in so many seconds, of what waits for it, is
    disconnected.

    linger: Publisher.close() waits so many seconds for subscribers.

    port: the TCP port of this rank. With 0 the system chooses one.

    The names are those of model.state_dict(), without the prefixes that DDP ("module.") and
    torch.compile() ("_orig_mod.") add. Shards on a GPU are copied to the host first. With HSDP the
    first replica publishes. A DTensor is sharded by rows (Shard(0)) over one dimension of its mesh
    at most, and replicated over the others."""

    def read() -> dict[str, torch.Tensor]:
        return _published(model)

    made = _publishers.get(model)
    if made is None or made.closed:
        made = _publishers[model] = Publisher(
            read(),
            group,
            wire_dtype,
            limit_bytes=limit_bytes,
            timeout_ms=milliseconds(timeout),
            linger_ms=milliseconds(linger),
            port=port,
        )
    made.publish(read, label)
    if ticket is not None and made.ticket_due:
        made.write_ticket(ticket)
    return made
