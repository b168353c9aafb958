# SPDX-License-Identifier: Apache-2.0
"""FSCCL's own collectives inside shard_map, through XLA's typed FFI. A call takes whole pytrees,
sends 16-bit floats without widening them, and allows uneven parts.

    # Collective over the processes, after jax.distributed.initialize().
    group = fsccl_jax.join(mesh)
    # Inside shard_map(..., mesh=mesh, check_vma=False).
    def step(parts, batch):
        token = group.token()
        weights, token = group.all_gather(parts, token)
        ...

XLA may run calls in any order that their operands allow. Therefore each call takes the token that
the call before it returned. The ranks compare a call's site (by default its name, file and line)
before its result can be read.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import ctypes
import hashlib
import itertools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed

from . import libraries, meeting
from .transposes import TARGET, gathered, permuted, reduced, scattered, sent

LIBRARY = 'libfsccl_jax.so'
_CAPACITY = 4096
_numbers = itertools.count()
# A typed key of jax.random, an int4 and the like have no type of FSCCL.
_CARRIED = frozenset(
    jnp.dtype(name)
    for name in (
        'bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 '
        'complex64 complex128 float8_e4m3fn float8_e5m2'
    ).split()
)
_joins: dict[str, int] = {}  # how many groups were made of the same devices
_library = None


def _load():
    global _library  # pylint: disable=global-statement
    if _library is None:
        _library = libraries.load(LIBRARY)
        for platform, handler in (
            ('cpu', _library.fsccl_jax_collective),
            ('CUDA', _library.fsccl_jax_device_collective),
        ):
            jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform=platform)
    return _library


def join(mesh: jax.sharding.Mesh) -> Group:
    """Returns the Group of all devices of `mesh`, whose ranks are in the order of mesh.devices.
    Each device is a rank, and a process may have several. Collective over the processes that have
    these devices; it blocks until all have joined, at most FSCCL_TIMEOUT_MS. Ctrl-C ends it."""
    if not isinstance(mesh, jax.sharding.Mesh):
        raise TypeError(
            f"fsccl_jax.join: {mesh!r} is no jax.sharding.Mesh: give the mesh of the program's "
            f'shard_map'
        )
    devices = list(mesh.devices.flat)
    platforms = {device.platform for device in devices}
    if platforms not in ({'cpu'}, {'gpu'}):
        raise ValueError(
            f'fsccl_jax.join: the mesh has devices of {sorted(platforms)}: a group is of CPU '
            'devices or of GPUs'
        )
    library, number = _load(), next(_numbers)
    mine = [
        (device.id if device.platform == 'cpu' else device.local_hardware_id, rank)
        for rank, device in enumerate(devices)
        if device.process_index == jax.process_index()
    ]
    if not mine:
        raise ValueError(
            'fsccl_jax.join: the mesh has no device of this process: only processes that have some '
            'call join()'
        )
    unique_id = _meet(library, devices)
    numbers = ctypes.c_int * len(mine)
    words = (
        unique_id,
        ctypes.c_int64(number),
        len(devices),
        len(mine),
        numbers(*(device for device, _ in mine)),
        numbers(*(rank for _, rank in mine)),
        f'jax {number}'.encode(),
    )
    _interruptible(
        lambda: _checked(library.fsccl_jax_join, *words),
        lambda: _checked(library.fsccl_jax_leave, ctypes.c_int64(number)),
    )
    group = Group(mesh, number)
    atexit.register(group.leave)  # runs before jax.distributed shuts down
    return group


def _key(devices):
    """Returns the key in JAX's coordination service under which these devices meet, in this order.
    All their processes compute the same key, because they make the groups of these devices one
    after the other."""
    members = hashlib.sha256(repr([device.id for device in devices]).encode()).hexdigest()
    count = _joins[members] = _joins.get(members, 0) + 1
    return f'fsccl_jax/group/{members}/{count}'


def _checked(function: Any, *words: Any) -> None:
    """Calls a function of the library that writes the reason of a failure to its last argument."""
    why = ctypes.create_string_buffer(_CAPACITY)
    if function(*words, why, ctypes.c_size_t(_CAPACITY)):
        raise RuntimeError(f'fsccl_jax.join: {why.value.decode(errors="replace")}')


def _interruptible(function: Callable[[], None], undo: Callable[[], None]) -> None:
    """Runs a function that blocks in C. It does so in another thread, because Python hears Ctrl-C
    only in a main thread that is not in C. After that the result is undone as soon as it is there."""
    future: concurrent.futures.Future[None] = concurrent.futures.Future()

    def run() -> None:
        try:
            function()
        except Exception as error:  # pylint: disable=broad-exception-caught
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, daemon=True).start()
    try:
        future.result()
    except KeyboardInterrupt:
        future.add_done_callback(lambda done: None if done.exception() else undo())
        raise


def _meet(library, devices):
    """Returns the unique id. The process of rank 0 makes it, and JAX's coordination service carries
    it."""
    unique_id = ctypes.create_string_buffer(256)
    client, key = distributed.global_state.client, _key(devices)
    maker = devices[0].process_index
    if jax.process_index() != maker:
        try:
            ctypes.memmove(unique_id, meeting.take(client, key, maker, library), 256)
        except RuntimeError as error:
            raise RuntimeError(f'fsccl_jax.join: {error}') from None
        return unique_id
    try:
        _checked(library.fsccl_jax_unique_id, unique_id)
    except RuntimeError as error:
        if client is not None:
            meeting.give_up(client, key, str(error))
        raise
    if client is not None:
        meeting.give(client, key, unique_id.raw)
    return unique_id


def _site(name, given):
    """Returns the text that ranks compare: the caller's words, or the operation and the line
    outside this package from which it is called."""
    if given is not None:
        return str(given).encode(errors='backslashreplace').decode()
    frame, folder = sys._getframe(2), os.path.dirname(__file__)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == folder:
        frame = frame.f_back
    file = os.path.basename(frame.f_code.co_filename).encode(errors='backslashreplace').decode()
    return f'{name} {file}:{frame.f_lineno}'


class Group:
    """The ranks of one mesh. Its collectives are called inside shard_map over that mesh. `tree` is
    a pytree of arrays, all of which are sent in one call. Each call returns the result and the next
    token."""

    def __init__(self, mesh, number):
        self.mesh, self.number, self.ranks = mesh, number, mesh.devices.size

    def __hash__(self):
        return self.number

    def __eq__(self, other):
        return self is other

    def token(self):
        """Returns the first token of a program. One call takes it, and every other call takes the
        token of the call before it. It is a constant with the group's mark, which the handler
        checks."""
        return np.array([self.number + 1, 0], np.float32)

    def announce(self, site):
        """Tells the library that the program being traced has calls of this site, so that errors
        can name it."""
        if _load().fsccl_jax_site(site.encode()):
            raise ValueError(
                f'fsccl_jax: another call site has the number of "{site}": give it another name'
            )

    def all_gather(self, tree, token, site=None, counts=None):
        """Returns the arrays of all ranks end to end, along their first dimension. If the ranks
        give different numbers of rows, `counts` has them. Each array then has as many rows as the
        largest number, and the rows beyond a rank's own are not read. The transpose is
        reduce_scatter()."""
        return self._apply(gathered, 'all_gather', tree, token, site, counts)

    def reduce_scatter(self, tree, token, site=None, counts=None):
        """Sums the arrays over the ranks, and returns this rank's part of the sum along the first
        dimension. `counts` is as in all_gather(), and rows beyond a rank's own are zero. The
        transpose is all_gather()."""
        return self._apply(scattered, 'reduce_scatter', tree, token, site, counts)

    def all_reduce(self, tree, token, site=None):
        """Returns the sum over the ranks. The transpose is all_reduce()."""
        return self._apply(reduced, 'all_reduce', tree, token, site, None)

    def all_to_all(self, tree, token, site=None):
        """Sends part i of the arrays' first dimension to rank i. The transpose is all_to_all()."""
        return self._apply(permuted, 'all_to_all', tree, token, site, None)

    def broadcast(self, tree, token, root=0, site=None):
        """Returns the arrays of rank `root`. The transpose is their sum at root, and zero on other
        ranks."""
        if not 0 <= root < self.ranks:
            raise ValueError(
                f'fsccl_jax.broadcast: root is {root}, and there are ranks 0 to {self.ranks - 1}'
            )
        return self._apply(lambda *words: sent(root, *words), 'broadcast', tree, token, site, None)

    def leave(self):
        """Ends the group, after the steps that JAX still runs. A later call is an error. Not
        collective."""
        if self.number is not None and _library is not None:
            try:
                jax.effects_barrier()
            except Exception:  # a step that failed has ended, too, and its results tell why
                pass
            why = ctypes.create_string_buffer(_CAPACITY)
            _library.fsccl_jax_leave(ctypes.c_int64(self.number), why, ctypes.c_size_t(_CAPACITY))
            atexit.unregister(self.leave)

    @staticmethod
    def _leaves(name, tree):
        """Returns the arrays of the tree, whose types the operation carries, and its structure."""
        leaves, structure = jax.tree.flatten(tree)
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        for dtype in (leaf.dtype for leaf in leaves):
            if dtype not in _CARRIED:
                raise TypeError(
                    f'fsccl_jax.{name}: an array is of {dtype}, which FSCCL does not carry: cast '
                    'it, or give jax.random.key_data() of a key'
                )
            is_8_bit_float = dtype.itemsize == 1 and jnp.issubdtype(dtype, jnp.floating)
            if is_8_bit_float and name in ('reduce_scatter', 'all_reduce'):
                raise TypeError(
                    f'fsccl_jax.{name}: an array is of {dtype}: 8-bit floats are gathered and '
                    'broadcast, not reduced; cast it to bfloat16 first'
                )
        return leaves, structure

    def _apply(self, function, name, tree, token, site, counts):
        leaves, structure = self._leaves(name, tree)
        if not leaves:
            return tree, token
        counts = None if counts is None else tuple(int(count) for count in counts)
        if counts is not None and (len(counts) != self.ranks or min(counts) < 0):
            raise ValueError(
                f'fsccl_jax.{name}: counts has {len(counts)} numbers {counts}: give one for each '
                f'of the {self.ranks} '
                'ranks, 0 or more'
            )
        for leaf in leaves:
            if name in ('all_reduce', 'broadcast'):
                continue
            if leaf.ndim == 0:
                raise ValueError(
                    f'fsccl_jax.{name}: an array has no dimensions, and parts lie along the first: '
                    f'reshape it to (1,)'
                )
            rows = leaf.shape[0]
            if counts is not None and rows != (
                max(counts) if name == 'all_gather' else sum(counts)
            ):
                raise ValueError(
                    f'fsccl_jax.{name}: an array has {rows} rows, and counts {counts} ask for '
                    f'{max(counts) if name == "all_gather" else sum(counts)}'
                )
            if counts is None and name != 'all_gather' and rows % self.ranks:
                raise ValueError(
                    f'fsccl_jax.{name}: an array has {rows} rows, which is no multiple of '
                    f'{self.ranks} ranks: pad it'
                    f'{", or give counts" if name == "reduce_scatter" else ""}'
                )
        results, token = function(self, _site(name, site), counts, tuple(leaves), token)
        return jax.tree.unflatten(structure, results), token


def counters() -> dict[str, int]:
    """Returns {name: number} for what the groups of this process have moved so far
    (fsccl_counters_t)."""
    return libraries.read_counters(_load().fsccl_jax_counters)
