# SPDX-License-Identifier: Apache-2.0
"""Receives the weights that the ranks of a job publish (publishing.py), in a process outside of the
job, such as inference and evaluation. docs/publish.md says how it works."""

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
from torch.distributed.tensor import DTensor

from . import _capi as c
from .publishing import describe, milliseconds, plain_name, sharded_dim, tensors, whole_ms
from .state import written

_TICKET_BYTES = 256
_SLICE_MS = 500  # a wait returns to Python this often, so that Ctrl-C takes effect


class Version(NamedTuple):
    """A version of a publication. `number` counts from 1, and `label` is the publisher's own
    number."""

    number: int
    label: int


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
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._abandoned = False

    def handle(self, memory: object) -> ctypes.c_void_p:
        """Returns the subscriber, or raises FscclError. `memory` lives as long as the call."""
        try:
            threading.Thread(target=self._call, args=(memory,), daemon=True).start()
            self._over.wait()
            if self._error:
                raise self._error
            return self._made
        except BaseException:
            with self._lock:
                self._abandoned = True
                self._leave()
            raise

    def _call(self, _memory: object) -> None:
        made = ctypes.c_void_p()
        try:
            # The error's text is this thread's own.
            c.check(c.lib.fsccl_subscribe(ctypes.byref(self._config), ctypes.byref(made)))
        except BaseException as error:
            self._error = error
        with self._lock:
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
            describe(param, names.get(name, plain_name(name)).encode(), tensor)
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
            timeout_ms=milliseconds(timeout),
            param_size=ctypes.sizeof(c.Param),
        )
        if ticket is not None:
            given = c.UniqueId()
            given.bytes[:] = ticket
            config.ticket = ctypes.pointer(given)
        self._timeout_ms = config.timeout_ms or _default_timeout_ms()
        self._got = c.Publication()  # the version that the host memory has
        self._taken = 0  # the number of the version that the tensors have
        self._handle = _Attempt(config).handle(self._copies)
        # Where nobody closes it, its thread ends with this object.
        self._end = weakref.finalize(self, c.lib.fsccl_subscriber_destroy, self._handle)
        self._end.atexit = False

    def _memory(self, name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int]]:
        """Returns host memory for the tensor's local part, and how the tensor is sharded. The
        memory is the tensor's own if it is contiguous memory of the host."""
        place = (1, 0)
        if isinstance(tensor, DTensor):
            dim = sharded_dim(name, tensor)
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
        if self._got.version == self._taken:
            # A negative time would stand for the subscription's own in C, which Ctrl-C cannot end.
            limit_ms = self._timeout_ms if timeout is None else whole_ms(timeout)
            until = time.monotonic() + limit_ms / 1000
            wait_ms = min(limit_ms, _SLICE_MS)
            while (
                c.check(
                    c.lib.fsccl_subscriber_update(self._handle, wait_ms, ctypes.byref(self._got))
                )
                == c.IN_PROGRESS
            ):
                wait_ms = min(int(1000 * (until - time.monotonic())), _SLICE_MS)
                if wait_ms <= 0:
                    return None
        # After Ctrl-C in an earlier call, this completes the version which that call had got.
        for tensor, local in self._copies:
            if tensor is not local:
                tensor.copy_(local)
            else:
                written([tensor])
        self._taken = self._got.version
        return Version(self._got.version, self._got.label)

    def report(self) -> dict[str, Any]:
        """Returns the fields of fsccl_subscribe_report_t."""
        report = c.SubscribeReport()
        c.check(c.lib.fsccl_subscriber_report(self._handle, ctypes.byref(report)))
        return report.figures()

    def close(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            self._end.detach()
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

    names: {name here: name under which the tensor is published}, where these differ. The prefix
    of torch.compile() ("_orig_mod.") makes no difference; that of DDP ("module.") does.

    ticket: the file that publish() wrote, or its bytes.

    address: without a ticket, "host:port" of any rank (Publisher.report()['port']). Both sides must
    then have the same FSCCL_JOB_SECRET_FILE.

    timeout: the call waits at most so many seconds for the publication, and afterwards a rank that
    is silent for so long counts as lost (FSCCL_TIMEOUT_MS)."""
    state = tensors(dict(state_dict))
    return Subscription(
        state, None if ticket is None else _read_ticket(ticket), address, timeout, names or {}
    )
