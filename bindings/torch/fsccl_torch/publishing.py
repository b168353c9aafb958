# SPDX-License-Identifier: Apache-2.0
"""Sends a model's weights to processes outside of its job. The ranks that train call publish(), and
other processes, such as inference and evaluation, call subscribe(). docs/publish.md says how it
works.

Each rank publishes the shards that it holds. If a tensor is whole on every rank, a rank publishes
the rows that torch.chunk would give it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from . import _capi as c
from .backend import FscclBackend
from .dtypes import MOVED

_WIRE = {torch.bfloat16: c.BFLOAT16, torch.float16: c.FLOAT16, None: c.PUBLISH_EXACT}
_TICKET_BYTES = 256
_SLICE_MS = 500  # a wait returns to Python this often, so that Ctrl-C takes effect


class Version(NamedTuple):
    """A version of a publication. `number` counts from 1, and `label` is the publisher's own
    number."""

    number: int
    label: int


def _milliseconds(timeout: float | None) -> int:
    return 0 if timeout is None else max(1, int(1000 * timeout))


def _tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _sharded_dim(name: str, tensor: DTensor) -> int | None:
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


def _describe(param: c.Param, name: bytes, tensor: torch.Tensor) -> None:
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
            dim = _sharded_dim(name, tensor) if isinstance(tensor, DTensor) else None
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
            _describe(params[index], name.encode(), tensor)
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
        pieces = [self._ranks.piece(tensor) for tensor in state.values()]
        places = (ctypes.c_void_p * len(pieces))(*[piece.data_ptr() or None for piece in pieces])
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
    shards. With 0 it is as much as that copy.

    timeout: a subscriber that takes nothing for so many seconds is disconnected.

    linger: Publisher.close() waits so many seconds for subscribers.

    port: the TCP port of this rank. With 0 the system chooses one.

    Shards on a GPU are copied to the host first. With HSDP the first replica publishes."""
    state = _tensors(model.state_dict(keep_vars=True))
    made = _publishers.get(model)
    if made is None:
        made = Publisher(
            state,
            group,
            wire_dtype,
            limit_bytes=limit_bytes,
            timeout_ms=_milliseconds(timeout),
            linger_ms=_milliseconds(linger),
            port=port,
        )
        _publishers[model] = made
        if ticket is not None:
            made.write_ticket(ticket)
    made.publish(state, label)
    return made


def _default_timeout_ms() -> int:
    text = ctypes.create_string_buffer(32)
    c.check(c.lib.fsccl_config_get(b'FSCCL_TIMEOUT_MS', text, len(text)))
    return int(text.value)


class _Attempt:
    """A call of fsccl_subscribe(), which may wait for as long as the subscription's timeout. It is
    made by a thread of its own, so that Ctrl-C ends the wait for it. Nobody waits for it then; when
    it returns, its thread leaves the publication again."""

    def __init__(self, config: c.SubscribeConfig) -> None:
        self._config = config
        self._made = ctypes.c_void_p()
        self._error: c.FscclError | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._abandoned = False

    def handle(self, memory: object) -> ctypes.c_void_p:
        """Returns the subscriber, or raises FscclError. `memory` lives as long as the call."""
        threading.Thread(target=self._call, args=(memory,), daemon=True).start()
        try:
            self._over.wait()
        except BaseException:
            with self._lock:
                self._abandoned = True
                self._leave()
            raise
        if self._error:
            raise self._error
        return self._made

    def _call(self, _memory: object) -> None:
        made = ctypes.c_void_p()
        status = c.lib.fsccl_subscribe(ctypes.byref(self._config), ctypes.byref(made))
        with self._lock:
            self._error = c.error(status) if status < 0 else None  # the text is this thread's own
            self._made = made
            if self._abandoned:
                self._leave()
        self._over.set()

    def _leave(self) -> None:
        if self._made:
            c.lib.fsccl_subscriber_destroy(self._made)
            self._made = ctypes.c_void_p()


class Subscription:
    """The object that subscribe() returns. It is a context manager."""

    def __init__(
        self,
        state: Mapping[str, torch.Tensor],
        ticket: bytes | None,
        address: str | None,
        timeout: float | None,
        names: Mapping[str, str],
    ) -> None:
        self._handle = ctypes.c_void_p()
        self._copies: list = []
        params, sharding = (c.Param * len(state))(), None
        for param, (name, tensor) in zip(params, state.items()):
            _describe(param, names.get(name, name).encode(), tensor)
            local, mine = self._memory(name, tensor)
            if sharding not in (None, mine):
                raise ValueError(
                    f"fsccl_torch.subscribe: '{name}' is sharded otherwise than the tensors before "
                    'it: subscribe to each kind'
                )
            sharding, param.shard = mine, local.data_ptr() or None
        config = c.SubscribeConfig(
            address=address.encode() if address else None,
            params=params,
            count=len(state),
            sharding=c.Sharding(c.LAYOUT_PER_PARAM, *(sharding or (1, 0))),
            timeout_ms=_milliseconds(timeout),
            param_size=ctypes.sizeof(c.Param),
        )
        if ticket is not None:
            given = c.UniqueId()
            given.bytes[:] = ticket
            config.ticket = ctypes.pointer(given)
        self._timeout_ms = config.timeout_ms or _default_timeout_ms()
        self._handle = _Attempt(config).handle(self._copies)

    def _memory(self, name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int]]:
        """Returns host memory for the tensor's local part, and how the tensor is sharded. The
        memory is the tensor's own if it is contiguous memory of the host."""
        place = (1, 0)
        if isinstance(tensor, DTensor):
            dim = _sharded_dim(name, tensor)
            mesh = tensor.device_mesh
            if dim is not None:
                place = (mesh.size(dim), mesh.get_local_rank(dim))
            tensor = tensor.to_local()
        tensor = tensor.detach()
        local = tensor
        if tensor.device.type != 'cpu' or not tensor.is_contiguous():
            local = torch.empty(
                tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == 'cuda'
            )
        self._copies.append((tensor, local))
        return local, place

    def update(self, timeout: float | None = 0.0) -> Version | None:
        """Fills the tensors with the newest complete version, and returns it. Returns None if there
        is no newer one after `timeout` seconds; with None it waits as long as the subscription's
        timeout. Raises FscclError when the publication has ended and its last version was
        delivered. The tensors are written only here."""
        got = c.Publication()
        limit_ms = self._timeout_ms if timeout is None else int(1000 * timeout)
        until = time.monotonic() + limit_ms / 1000
        wait_ms = min(limit_ms, _SLICE_MS)
        while (
            c.check(c.lib.fsccl_subscriber_update(self._handle, wait_ms, ctypes.byref(got)))
            == c.IN_PROGRESS
        ):
            wait_ms = min(int(1000 * (until - time.monotonic())), _SLICE_MS)
            if wait_ms <= 0:
                return None
        for tensor, local in self._copies:
            if tensor is not local:
                tensor.copy_(local)
        return Version(got.version, got.label)

    def report(self) -> dict[str, Any]:
        """Returns the fields of fsccl_subscribe_report_t."""
        report = c.SubscribeReport()
        c.check(c.lib.fsccl_subscriber_report(self._handle, ctypes.byref(report)))
        return report.figures()

    def close(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            c.check(c.lib.fsccl_subscriber_destroy(handle))

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_ticket(ticket: bytes | str | os.PathLike[str]) -> bytes:
    read = ticket if isinstance(ticket, bytes) else Path(ticket).read_bytes()
    if len(read) != _TICKET_BYTES:
        raise ValueError(
            f'fsccl_torch.subscribe: a ticket has {_TICKET_BYTES} bytes, this one has {len(read)}'
        )
    return read


def subscribe(
    state_dict: Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]],
    *,
    ticket: bytes | str | os.PathLike[str] | None = None,
    address: str | None = None,
    timeout: float | None = None,
    names: Mapping[str, str] | None = None,
) -> Subscription:
    """Subscribes to what publish() publishes, in a process outside of the job. The process needs no
    process group.

    state_dict: names and tensors, such as model.state_dict(), for all or some of the published
    tensors. They are whole, or DTensors sharded by rows. Subscription.update() fills them in place,
    and converts between float types.

    names: {name here: name under which the tensor is published}, where these differ.

    ticket: the file that publish() wrote, or its bytes.

    address: without a ticket, "host:port" of any rank (Publisher.report()['port']). Both sides must
    then have the same FSCCL_JOB_SECRET_FILE.

    timeout: the call waits at most so many seconds for the publication, and afterwards a rank that
    is silent for so long counts as lost (FSCCL_TIMEOUT_MS)."""
    state = _tensors(dict(state_dict))
    return Subscription(
        state, None if ticket is None else _read_ticket(ticket), address, timeout, names or {}
    )
