# SPDX-License-Identifier: Apache-2.0
"""Tensors in a communicator's pool: memory that the ranks of a host map together, so that collectives on it copy least.

A block goes back when the last tensor on it dies, wherever that happens: garbage may be collected in any thread, at any point. So a
dying block is only noted, and freed by the next one to hold the communicator's lock.
"""

import collections
import ctypes
import math
import weakref

import torch

from . import _capi as c


def _died(comm, block):
    comm.pool.dead.append(block)
    if comm.closing:  # it waited for its last block
        comm.close(wait=False)


class Pool:
    """The pool of one communicator. Made by the first allocation, which is therefore collective: all ranks of the group make it, at
    the same place in the order of the group's collectives."""

    def __init__(self, comm):
        self._comm, self._handle = weakref.ref(comm), None
        self._live, self.dead = 0, collections.deque()

    def allocate(self, size, dtype):
        shape = (size,) if isinstance(size, int) else tuple(int(n) for n in size)
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        comm, block = self._comm(), ctypes.c_void_p()
        with comm.lock:
            if self._handle is None:
                self._create(comm)
            self._free_dead()
            status = c.lib.fsccl_pool_alloc(self._handle, count * dtype.itemsize, None, ctypes.byref(block))
            if status < 0:
                raise comm.failure(status, "allocate_tensor")
            self._live += 1
        memory = (ctypes.c_byte * (count * dtype.itemsize)).from_address(block.value)
        weakref.finalize(memory, _died, comm, block.value).atexit = False
        return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)

    def _create(self, comm):
        handle = ctypes.c_void_p()
        status = c.lib.fsccl_pool_create(comm.handle, None, ctypes.byref(handle))
        if status < 0:
            raise comm.failure(status, "allocate_tensor (its first call is collective)")
        self._handle = handle.value

    def _free_dead(self):
        while self.dead:
            c.lib.fsccl_pool_free(self._handle, self.dead.popleft(), None)
            self._live -= 1

    def stats(self):
        found = c.PoolStats()
        if self._handle:
            c.check(c.lib.fsccl_pool_stats(self._handle, ctypes.byref(found)))
        return {name: getattr(found, name) for name, _ in c.PoolStats._fields_[1:]}

    def close(self):
        """True when the pool is gone; False while tensors live in it."""
        if self._handle:
            self._free_dead()
            if self._live or c.lib.fsccl_pool_destroy(self._handle) != c.OK:
                return False
            self._handle = None
        return True
