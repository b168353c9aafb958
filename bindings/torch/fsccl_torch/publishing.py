# SPDX-License-Identifier: Apache-2.0
"""Sends a model's weights to processes outside of its job, which call subscribe() (subscribing.py).
docs/publish.md says how it works.

Each rank publishes the shards that it holds. If a tensor is whole on every rank, a rank publishes
the rows that torch.chunk would give it.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from . import _capi as c
from .backend import FscclBackend
from .dtypes import MOVED

_WIRE = {torch.bfloat16: c.BFLOAT16, torch.float16: c.FLOAT16, None: c.PUBLISH_EXACT}


def milliseconds(timeout: float | None) -> int:
    return 0 if timeout is None else max(1, int(1000 * timeout))


def tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


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
    param.name, param.dims, param.dtype, param.tied_to = name, len(shape), code, -1
    param.shape[: len(shape)] = shape


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
            tensor = tensor.to_local()
            if not whole:
                return tensor.cpu().contiguous()
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
        self._ranks, self._names = ranks, list(state)
        if not ranks.publishes:
            return
        if wire_dtype not in _WIRE:
            raise ValueError(
                f'fsccl_torch.publish: wire_dtype={wire_dtype}: give torch.bfloat16, torch.float16 '
                'or None, which publishes every tensor in its own type'
            )
        params = (c.Param * len(state))()
        owners: dict[int, int] = {}
        for index, (name, tensor) in enumerate(state.items()):
            describe(params[index], name.encode(), tensor)
            params[index].tied_to = owners.setdefault(id(tensor), index)
            if params[index].tied_to == index:
                params[index].tied_to = -1
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

    def publish(self, state: Mapping[str, torch.Tensor], label: int) -> None:
        if not self._handle:
            return
        if list(state) != self._names:
            raise ValueError(
                'fsccl_torch.publish: the model has other tensors than when it was published first'
            )
        places = (ctypes.c_void_p * len(state))()
        try:
            pieces = [self._ranks.piece(tensor) for tensor in state.values()]
            places[:] = [piece.data_ptr() or None for piece in pieces]
        except BaseException:
            # A call that fails counts, so that this rank's versions stay those of the others.
            c.lib.fsccl_publish(self._handle, (ctypes.c_void_p * len(state))(), label)
            raise
        c.check(c.lib.fsccl_publish(self._handle, places, label))

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
        part = Path(f'{os.fspath(path)}.{os.getpid()}')
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 'wb') as file:
            file.write(self.ticket)
        part.replace(path)

    def report(self) -> dict[str, Any]:
        """Returns the fields of fsccl_publish_report_t, or {} on ranks that do not publish."""
        report = c.PublishReport()
        if not self._handle:
            return {}
        c.check(c.lib.fsccl_publisher_report(self._handle, ctypes.byref(report)))
        return report.figures()

    def close(self) -> None:
        """Ends this rank's part when subscribers have its last version, or after `linger`
        seconds."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            c.check(c.lib.fsccl_publisher_destroy(handle))


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

    The first call makes the publication, which is collective, and takes the other arguments:

    ticket: a file that rank 0 writes for subscribers. Only this user can read it.

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

    Shards on a GPU are copied to the host first. With HSDP the first replica publishes."""
    state = tensors(model.state_dict(keep_vars=True))
    made = _publishers.get(model)
    if made is None:
        made = Publisher(
            state,
            group,
            wire_dtype,
            limit_bytes=limit_bytes,
            timeout_ms=milliseconds(timeout),
            linger_ms=milliseconds(linger),
            port=port,
        )
        _publishers[model] = made
        if ticket is not None:
            made.write_ticket(ticket)
    made.publish(state, label)
    return made
