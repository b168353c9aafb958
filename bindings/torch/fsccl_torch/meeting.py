# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a group meet: rank 0 makes a unique id, and the store carries it to the others.
Errors name the rank and the group."""

from __future__ import annotations

import contextlib
import ctypes
import time

from . import _capi as c

_KEY = 'fsccl/unique_id'
_FAILED = b'failed: '
_ID_PAUSE_S = 0.01

# These are the unique ids that this process has read in stores, each with the reader's rank.
_used: set[tuple[int, bytes]] = set()


def meet(store, rank, size, timeout, name, ranks):
    """Makes a communicator of a group's ranks, and returns its handle."""
    config = config_of(timeout, name)
    me = who(rank, name, ranks)
    identity = c.UniqueId()
    if rank == 0:
        status = c.lib.fsccl_unique_id_create(ctypes.byref(identity))
        if status < 0:
            problem = c.error(status)
            store.set(_KEY, _FAILED + str(problem).encode())
            raise problem
        if size > 1:
            store.set(_KEY, bytes(identity) + repr(ranks).encode())
    else:
        try:
            found = _new_id(store, rank)
        except RuntimeError as error:  # it is DistStoreError if the store is another process
            raise c.FscclError(
                f'{me}: rank 0 of the group has not offered a place to meet: does it run, and '
                f'create this group '
                f'at the same point? [{error}]',
                c.ERR_TIMEOUT,
                rank,
                0,
            ) from error
        if found.startswith(_FAILED):
            raise c.FscclError(
                f'{me}: rank 0 of the group could not begin: {found[len(_FAILED) :].decode()}',
                0,
                rank,
                0,
            )
        theirs = found[ctypes.sizeof(identity) :].decode()
        if theirs != repr(ranks):
            raise c.FscclError(
                f"{me}: this rank makes it of the global ranks {ranks}, the group's rank 0 of "
                f'{theirs}: all ranks '
                'make the same groups in the same order',
                c.ERR_MISMATCH,
                rank,
                0,
            )
        ctypes.memmove(ctypes.byref(identity), found, ctypes.sizeof(identity))
    config.unique_id, config.rank, config.ranks = ctypes.pointer(identity), rank, size
    handle = ctypes.c_void_p()
    status = c.lib.fsccl_comm_create(ctypes.byref(config), ctypes.byref(handle))
    problem = explained(c.error(status), me) if status < 0 else None
    if rank == 0 and size > 1:
        # All ranks have read the id, or may no longer use it. A group that is made later from this
        # store has another one. Some stores cannot delete keys.
        with contextlib.suppress(RuntimeError, NotImplementedError):
            store.delete_key(_KEY)
    if problem:
        raise problem
    return handle.value


def _new_id(store, rank):
    """Waits for the id that rank 0 wrote for this group, and returns it. The store may still have
    the id of an earlier group."""
    until = time.monotonic() + store.timeout.total_seconds()
    while (rank, found := store.get(_KEY)) in _used:
        if time.monotonic() > until:
            raise RuntimeError('the store has only the place of an earlier group')
        time.sleep(_ID_PAUSE_S)
    if not found.startswith(_FAILED):
        _used.add((rank, found))
    return found


def config_of(timeout, name):
    return c.CommConfig(
        version=c.library_version,
        rank=-1,
        timeout_ms=c.milliseconds(timeout) or 1,
        name=f'torch group {name}'.encode(),
    )


def who(rank, name, ranks):
    elsewhere = f' (global rank {ranks[rank]})' if ranks and ranks[rank] != rank else ''
    return f"fsccl: rank {rank}{elsewhere} of group '{name}'"


def explained(error, place):
    """Returns an error of FSCCL whose text begins with the place where it occurred."""
    return c.FscclError(
        f'{place}: {error}', error.code, error.rank, error.peer, error.sequence, error.operation
    )
