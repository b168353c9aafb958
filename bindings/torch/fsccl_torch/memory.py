# SPDX-License-Identifier: Apache-2.0
"""Tensors in a communicator's pool. The ranks of a host all map this memory, so collectives on it
copy least.

A block is given back when the last tensor on it dies. Garbage may be collected in any thread, at
any point. Therefore a dying block is only noted, and the next caller that holds the communicator's
lock frees it. On a GPU it is freed on the stream on which it was allocated, as torch does: another
stream that uses it must make that stream wait for it before the block dies.
"""

import collections
import ctypes
import math
import weakref

import torch

from . import _capi as c
from . import streams
from .turns import await_turn


def _died(comm, pool, block):
    pool.dead.append(block)
    if comm.closing:  # close() may have waited for this block
        comm.close(wait=False)


class Pool:
    """The pool of one communicator, on the host or on a `device`, with blocks of tensors and slots
    of units. The first use makes it. That is collective, so all ranks of the group must come to it
    at the same place in their order of collectives."""

    def __init__(self, comm, device=None):
        self._comm, self._handle, self._device = weakref.ref(comm), None, device
        self._live, self.dead = 0, collections.deque()
        # Handles of units, in the order in which they were made. _left has those that take_back()
        # could not end; they end with the pool.
        self.units, self._left = [], []

    def allocate(self, size, dtype):
        shape = (size,) if isinstance(size, int) else tuple(int(n) for n in size)
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype, device=self._device)
        comm, block, size = self._comm(), ctypes.c_void_p(), count * dtype.itemsize
        stream = (
            streams.cuda.handle(streams.cuda.current_stream(self._device)) if self._device else None
        )
        with comm.lock:
            handle = self.open('allocate_tensor')
            self._free_dead()
            status = c.lib.fsccl_pool_alloc(handle, size, stream, ctypes.byref(block))
            if status < 0:
                raise comm.failure(status, 'allocate_tensor')
            self._live += 1
        memory = (
            streams.Block(block.value, size)
            if self._device
            else (ctypes.c_byte * size).from_address(block.value)
        )
        weakref.finalize(memory, _died, comm, self, (block.value, stream)).atexit = False
        if self._device:
            return streams.cuda.bytes_of(memory, self._device).view(dtype).view(shape)
        return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)

    def open(self, call):
        """Returns the fsccl_pool_t, and makes the pool at the first call. Needs the communicator's
        lock."""
        if self._handle is None:
            comm, handle = self._comm(), ctypes.c_void_p()
            config = (
                c.PoolConfig(memory=c.MEMORY_CUDA, device=self._device.index or 0, record=1)
                if self._device
                else None
            )
            status = c.lib.fsccl_pool_create(
                comm.handle, config and ctypes.byref(config), ctypes.byref(handle)
            )
            if status < 0:
                raise comm.failure(status, f'{call} (its first call is collective)')
            self._handle = handle.value
        return self._handle

    def take_back(self):
        """Ends the units whose Python objects are gone on all ranks, and returns whether there were
        any. Collective: slots must be given back at the same place on all ranks, but Python drops
        objects at any time, so the ranks agree here."""
        if not self.units:
            return False
        comm, gone = (
            self._comm(),
            (ctypes.c_uint8 * len(self.units))(*[unit.users.are_gone() for unit in self.units]),
        )
        await_turn(comm, 'fsdp2: which models are gone')
        with comm.lock:
            status = c.lib.fsccl_all_reduce(
                gone, gone, len(gone), c.UINT8, c.Op(c.OP_MIN, 0, 1.0), comm.handle, None, None
            )
            if status < 0:
                raise comm.failure(status, 'fsdp2: which models are gone')
            ended = [unit for unit, all_gone in zip(self.units, gone) if all_gone]
            self.units = [unit for unit, all_gone in zip(self.units, gone) if not all_gone]
            # A unit that cannot end, after a failure, leaves the list that ranks compare.
            self._left += [unit for unit in ended if not unit.close()]
        return bool(ended)

    def versions(self):
        """Returns the versions of all shards of the units, in an order that is the same on all
        ranks, or None if nothing is trained. A unit counts until its model is gone on all ranks."""
        if not any(unit.trains for unit in self.units):
            return None
        return [version for unit in self.units for version in unit.versions()]

    def frozen_bytes(self):
        """Returns how many bytes of parameters stay gathered."""
        return sum(unit.frozen_bytes for unit in self.units)

    def step(self):
        """Tells the pool that a training step ends (fsccl_pool_step())."""
        comm = self._comm()
        with comm.lock:
            status = c.lib.fsccl_pool_step(self._handle)
        if status < 0:
            raise comm.failure(status, 'a step of the pool')

    def _free_dead(self):
        for _ in range(len(self.dead)):
            block, stream = self.dead.popleft()
            if c.lib.fsccl_pool_free(self._handle, block, stream) == c.ERR_NOT_AVAILABLE:
                self.dead.append((block, stream))  # its stream is being captured: try again later
            else:
                self._live -= 1

    def stats(self):
        found = c.PoolStats()
        if self._handle:
            c.check(c.lib.fsccl_pool_stats(self._handle, ctypes.byref(found)))
        return found.figures()

    def close(self):
        """Returns True when the pool is gone, and False while tensors live in it. Its units must
        not be in use."""
        if self._handle:
            for unit in self.units + self._left:
                unit.close()
            self._free_dead()
            if self._live or c.lib.fsccl_pool_destroy(self._handle) != c.OK:
                return False
            self._handle = None
        return True
