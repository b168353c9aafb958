# SPDX-License-Identifier: Apache-2.0
"""A communicator of FSCCL as a process group uses it: how its ranks meet, the lock under which they
submit, the operations in flight, and errors that name the rank, the group and the call.

FSCCL lets one thread at a time issue operations on a communicator. `lock` is held only while an
operation is submitted, never while one is waited for. Otherwise the threads of a process would wait
for each other's peers.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import threading
import time
import weakref

from . import _capi as c
from . import streams
from .meeting import config_of, explained, meet, who
from .memory import Pool
from .turns import await_turn, futures_over
from .work import StreamWork, Together, Work, run_last

_LAST_FUTURES_S = 10  # a process that ends waits so long for functions hung on futures
_SLICE_MS = 500  # a wait returns to Python this often, so that Ctrl-C takes effect

_live: weakref.WeakSet[Communicator] = weakref.WeakSet()


def connect(store, rank, size, timeout, name, ranks):
    """Makes a communicator of a group's ranks, which meet through the store."""
    handle = meet(store, rank, size, timeout, name, ranks)
    return Communicator(handle, rank, size, timeout, name, ranks)


class Communicator:
    def __init__(self, handle, rank, size, timeout, name, ranks):
        self.handle, self.rank, self.size, self.name, self.ranks = handle, rank, size, name, ranks
        self.timeout_ms = c.milliseconds(timeout)
        self.limit_ms = 0  # if not 0, a shorter limit than the communicator's own
        self.lock, self.finish_lock = threading.Lock(), threading.RLock()
        self.pending = {}  # the works in flight, by handle: they keep their tensors alive
        self.coalesced = None  # list of works between start_coalescing and end_coalescing
        # close() was called. It succeeds when the last tensor in the pool has died.
        self.closing = False
        self.watched = False  # a future was asked for, so a thread may still run its functions
        self.sequence = 0
        # These objects have units or pools on this communicator, and are closed before it.
        self.dependents = []
        self.pool = Pool(self)
        self.device_pools, self._sides = {}, {}  # by device
        self._over = self.done('', None)  # the result of a blocking call
        self._out = ctypes.c_void_p()
        self._out_reference = ctypes.byref(self._out)
        # The result does not change once it is an error, so threads may share this variable.
        self._state = ctypes.c_int()
        _live.add(self)

    def submit(
        self,
        call,
        function,
        arguments,
        keep,
        result,
        finish=None,
        blocking=False,
        in_order=True,
        lock=None,
    ):
        """Issues function(*arguments, comm, stream, work). `keep` is what must live until the
        operation is over, `result` the future's value, and `finish` a last step in Python.
        `in_order` means that it is a collective, which all ranks issue in one order. `lock` is held
        during the call instead of the communicator's lock. An operation on tensors of a GPU goes to
        a stream, and nothing waits for it here."""
        if in_order:
            await_turn(self, call)
        device = streams.device_of(keep)
        if device is not None and streams.on_gpu(device):
            return self._put(
                call,
                function,
                arguments,
                keep,
                result,
                finish,
                self._side(device),
                blocking,
                in_order,
            )
        # On the host a rank that comes late to a failed communicator finds the error here, and not
        # what the others sent before they gave up.
        self.check_alive(call)
        if lock is None:
            with self.lock:
                status = function(*arguments, self.handle, None, self._out_reference)
                handle = self._out.value
                self.sequence += in_order
        else:
            with lock:
                out = ctypes.c_void_p()
                status = function(*arguments, self.handle, None, ctypes.byref(out))
                handle = out.value
        coalesced = self.coalesced if in_order else None  # a message is added by its sender
        blocking = blocking and coalesced is None
        if status == c.IN_PROGRESS and blocking:
            first_ms = min(_SLICE_MS, self.limit_ms or _SLICE_MS)
            status = c.lib.fsccl_work_wait(handle, first_ms)
        if status < 0:
            raise self.failure(status, call)
        if status == c.OK:
            if finish:
                run_last(finish)
            if blocking:
                return self._over
            work = self.done(call, result)
        else:
            work = self._in_flight(Work(self, call, handle, keep, result, finish, in_order))
            if blocking:
                self.wait(handle, call, spent_ms=first_ms)
                work.wait()
        if coalesced is not None:
            coalesced.append(work)
        return work

    def _side(self, device):
        side = self._sides.get(device)
        if side is None:
            side = self._sides[device] = streams.Side(device)
        return side

    def _put(self, call, function, arguments, keep, result, finish, side, blocking, in_order):
        with self.lock:  # the order on the stream is that of the calls
            caller = side.begin()
            status = function(*arguments, self.handle, streams.cuda.handle(side.stream), None)
            self.sequence += in_order
            if status < 0:
                raise self.failure(status, call)
            if finish:
                with streams.cuda.on(side.stream):
                    run_last(finish)
            event = side.end((keep, finish))
        work = StreamWork(self, call, side, caller, event, result)
        if in_order and self.coalesced is not None:
            self.coalesced.append(work)
        elif blocking:
            work.wait()
        return work

    def drain(self, device):
        """Waits for what the current stream and the communicator's own stream on a device were
        given."""
        with self.lock:
            side = self._side(device)
            side.begin()
            side.finish()

    def check_alive(self, call):
        """Raises the error of a communicator that has failed. Streams go on after a rank has died,
        but what they then compute is worthless. So a wait for a stream checks this."""
        status = self.state()
        if status < 0:
            raise self.failure(status, call)

    def _in_flight(self, work):
        # Complete works that nobody waits for are released here. Some works may stay in flight for
        # long, such as a receive on a channel for control messages. Therefore a work that was
        # looked at goes to the end, and two are looked at for each new one.
        for _ in range(2):
            with self.finish_lock:
                handle = next(iter(self.pending), None)
                if handle is None:
                    break
                seen = self.pending[handle] = self.pending.pop(handle)
            seen.test()
        with self.finish_lock:
            self.pending[work._handle] = work
        return work

    def pool_of(self, device):
        """Returns the pool of tensors on `device`. A GPU's pool is made here, which all ranks do at
        the same place in their order of collectives."""
        if not streams.on_gpu(device):
            return self.pool
        pool = self.device_pools.get(device)
        if pool is None:
            pool = self.device_pools[device] = Pool(self, device)
        return pool

    def done(self, call, result):
        return Work(self, call, 0, None, result, None)

    def together(self, works):
        return works[0] if len(works) == 1 else Together(works)

    def late(self, call, milliseconds, again):
        """Returns the error of an operation that is not complete after `milliseconds`. `again` says
        that the caller may wait again. Otherwise the limit was the group's, and the group is
        aborted so that the other ranks get an error, too."""
        if not again:
            self.abort()
        advice = (
            'Wait again, or abort the group.'
            if again
            else 'This group has ended: create it again, with a longer timeout.'
        )
        return c.FscclError(
            f'{self.who()}: {call}: not complete after {milliseconds} ms: another rank is late. '
            f'{advice}',
            c.ERR_TIMEOUT,
            self.rank,
        )

    def wait(self, handle, call, milliseconds=0, spent_ms=0):
        """Waits for an operation, at most `milliseconds` (0: as long as the group allows), of which
        the caller has spent some."""
        limit = milliseconds or self.limit_ms
        until = time.monotonic() + (limit - spent_ms) / 1000
        left = min(limit - spent_ms, _SLICE_MS) if limit else _SLICE_MS
        while left > 0:
            status = c.lib.fsccl_work_wait(handle, left)
            if status < 0:
                raise self.failure(status, call)
            if status == c.OK:
                return
            if limit:
                left = min(int((until - time.monotonic()) * 1000), _SLICE_MS)
        raise self.late(call, limit, milliseconds > 0)

    def who(self):
        return who(self.rank, self.name, self.ranks)

    def failure(self, status, call):
        """Returns the error of a call that failed. It ends a block of coalesced operations, because
        torch does not end a block that an error leaves."""
        self.coalesced = None
        if not self.handle:
            return c.FscclError(
                f'{self.who()}: {call}: the group was destroyed: create a new one',
                c.ERR_INVALID_STATE,
                self.rank,
            )
        error = explained(c.error(status), f'{self.who()}: {call}')
        if self.ranks and 0 <= error.peer < self.size and self.ranks[error.peer] != error.peer:
            error.args = (
                f'{error} (rank {error.peer} of the group is global rank {self.ranks[error.peer]})',
            )
        return error

    def split(self, color, key, timeout, name, ranks):
        """Returns the communicator of the ranks that give the same `color`, or None if it is None.
        Collective over all ranks of this communicator."""
        config, handle = config_of(timeout, name), ctypes.c_void_p()
        await_turn(self, 'split')
        with self.lock:
            status = c.lib.fsccl_comm_split(
                self.handle,
                -1 if color is None else color,
                key,
                ctypes.byref(config),
                ctypes.byref(handle),
            )
        if status < 0:
            raise self.failure(status, 'split')
        return (
            Communicator(handle.value, key, len(ranks), timeout, name, ranks)
            if handle.value
            else None
        )

    def subset(self, timeout, name, ranks):
        """Returns the communicator of some global ranks. This communicator must be the default
        group's. Only those ranks call it, from any thread."""
        members = (ctypes.c_int * len(ranks))(*ranks)
        tag = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], 'little')
        config, handle = config_of(timeout, name), ctypes.c_void_p()
        status = c.lib.fsccl_comm_subset(
            self.handle, members, len(ranks), tag, ctypes.byref(config), ctypes.byref(handle)
        )
        rank = ranks.index(self.rank)
        if status < 0:
            raise explained(
                c.error(status),
                f'{who(rank, name, ranks)}: all ranks make the same groups in the same order',
            )
        return Communicator(handle.value, rank, len(ranks), timeout, name, ranks)

    def survivors(self, timeout):
        """Returns a communicator of the ranks that are alive, on which these ranks agree, and the
        numbers that these ranks have in this communicator. Collective over them. It ends the
        operations of this communicator."""
        config, handle = config_of(timeout, f'survivors of {self.name}'), ctypes.c_void_p()
        c.check(c.lib.fsccl_comm_abort(self.handle))
        status = c.lib.fsccl_comm_shrink(self.handle, ctypes.byref(config), ctypes.byref(handle))
        size, left = ctypes.c_int(), None
        if status >= 0:
            c.check(c.lib.fsccl_comm_size(handle, ctypes.byref(size)))
            left, mine = (ctypes.c_int * size.value)(), ctypes.c_int(self.rank)
            status = c.lib.fsccl_all_gather(
                ctypes.byref(mine), left, 1, c.INT32, handle, None, None
            )
        if status < 0:
            raise self.failure(status, 'shrink')
        left = list(left)
        return Communicator(
            handle.value, left.index(self.rank), len(left), timeout, self.name, None
        ), left

    def state(self):
        """Returns the status that ended the communicator, or OK."""
        status = c.lib.fsccl_comm_async_error(self.handle, self._state)
        return status if status < 0 else self._state.value

    def abort(self):
        if self.handle:
            c.lib.fsccl_comm_abort(self.handle)

    def finish(self, but=()):
        """Waits for the operations that nobody waited for, except those in `but`."""
        for work in list(self.pending.values()):
            try:
                if work not in but:
                    work.wait()
            except c.FscclError:
                return  # the communicator has failed, so nothing is left to wait for

    def close(self, wait=True):
        """Ends the communicator, or marks it to end when the last tensor in its pool dies. With
        `wait` it first waits for operations that nobody waited for."""
        if not self.handle:
            return
        self.closing = True
        if wait:
            self.finish()
        for side in self._sides.values() if wait else ():
            side.finish()
        for dependent in self.dependents:
            dependent.close()
        if not self.lock.acquire(blocking=wait):
            return  # this is a finalizer that runs inside another close()
        try:
            pools = [self.pool, *self.device_pools.values()]
            if (
                self.handle
                and all([pool.close() for pool in pools])
                and c.lib.fsccl_comm_destroy(self.handle) == c.OK
            ):
                self.handle = None
        finally:
            self.lock.release()

    def __del__(self):
        if getattr(self, 'handle', None):
            self.close(wait=False)


@atexit.register
def _close_all():
    # A thread that calls into an interpreter which has ended would end the process from within
    # torch. So futures complete or fail now, and the functions hung on them run, unless one of
    # these waits for something that never happens.
    for comm in list(_live):
        comm.close(wait=False)
        if comm.handle and comm.watched:
            comm.abort()
            comm.close(wait=False)
    futures_over(_LAST_FUTURES_S)
