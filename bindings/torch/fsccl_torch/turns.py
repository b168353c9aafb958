# SPDX-License-Identifier: Apache-2.0
"""Futures of operations: the threads that complete them, and the order of collectives that are
issued by functions hung on futures.

Ranks must issue collectives in one order. A function that a program hangs on a future runs in
another thread, at a moment that no other rank knows. A collective that it issues could therefore
overtake the program's own collectives on one rank and not on another. To prevent this, each future
of a collective has a turn. The turns of a thread are in the order of its calls of get_future(), and
a collective waits for its turn:

- A collective of the program waits until the turns of all earlier futures of its thread are over
  whose operations are of the same group.
- A collective of a function hung on a future waits until the turns before that future's are over.
- A turn is over when the functions hung on the future have returned, and the turns of the futures
  that they asked for are over.

So the order is that of a program in which each future completes where get_future() was called.
Functions that issue no collective wait for nothing. Futures of messages have no turn, because
messages match by their ranks and tags. A program's collective does not wait for futures of other
groups, because a rank may use its groups in an order that another rank does not have.

A wait for a turn ends with an error when the group has failed or its timeout has passed.
"""

from __future__ import annotations

import functools
import itertools
import queue
import sys
import threading
import time

import torch

from . import _capi as c

_changed = threading.Condition()  # notified when a turn is over
_SLICE_S = 0.5  # a wait looks so often whether the group has failed


class _Series:
    """The turns that are not over, in their order, for which one thread, or the functions of the
    turn `owner`, must wait. Its users hold the lock of _changed."""

    def __init__(self, owner=None):
        self.turns, self.owner = {}, owner  # a dict has an order and removes a turn at once

    def first(self, comm=None):
        """Returns the first turn, or the first of a communicator if one is given, or None."""
        return next((turn for turn in self.turns if comm in (None, turn.comm)), None)


class _Turn:
    """The turn of the future of a collective `call` on `comm`. Both are None for other futures.
    `inner` has the turns of the futures for which its functions asked, or is None."""

    def __init__(self, future, series, before=None, comm=None, call=None):
        self.future, self.series, self.before, self.comm, self.call = (
            future,
            series,
            before,
            comm,
            call,
        )
        self.inner, self.returned = None, False
        self.thread = None  # the one that runs its functions
        with _changed:
            series.turns[self] = None

    def waits_for(self):
        """Returns the turn that must be over before a function of this one issues a collective, or
        None."""
        first = self.series.first()
        if first is not self:
            return first
        return self.inner.first() if self.inner else None

    def end(self):
        """Says that the functions have returned."""
        self.future = self.before = self.thread = None
        with _changed:
            self.returned, turn = True, self
            while turn is not None and turn.returned and not (turn.inner and turn.inner.turns):
                del turn.series.turns[turn]
                turn.inner, turn = None, turn.series.owner
            _changed.notify_all()

    def state(self):
        """Says in words why the turn is not over."""
        found, frame = None, sys._current_frames().get(self.thread) if self.thread else None
        while frame is not None and frame.f_code is not _Completer._take.__code__:
            if frame.f_code.co_filename != torch.futures.__file__:
                found = frame
            frame = frame.f_back
        if found is None:
            return f'that {self.call}, or a future of its callbacks, is not complete'
        code = found.f_code
        return f'{code.co_name}() at {code.co_filename}:{found.f_lineno} has not returned'


class _OfThread(threading.local):
    """The turn whose functions a thread runs, and the series of the futures that the thread asked
    for. Each may be None. Every collective reads both. They are attributes of the class because an
    attribute that a thread lacks takes longer to look up."""

    turn: _Turn | None = None
    series: _Series | None = None


_here = _OfThread()


def _series():
    """Returns the series for a future that this thread asks for now."""
    turn = _here.turn
    if turn is not None:
        turn.inner = turn.inner or _Series(turn)
        return turn.inner
    if _here.series is None:
        _here.series = _Series()
    return _here.series


def await_turn(comm, call):
    """Waits until all ranks issue the collective `call` of this thread on `comm` next. It is called
    before each collective."""
    turn, series = _here.turn, _here.series
    if turn is not None:
        _wait(comm, call, turn.waits_for)
    elif series is not None and series.turns:
        _wait(comm, call, functools.partial(series.first, comm))


def _wait(comm, call, waits_for):
    limit_ms = comm.limit_ms or comm.timeout_ms
    until = time.monotonic() + limit_ms / 1000
    with _changed:
        while (turn := waits_for()) is not None:
            comm.check_alive(call)
            left = until - time.monotonic()
            if left <= 0:
                break
            _changed.wait(min(left, _SLICE_S))
    if turn is not None:
        comm.abort()
        raise c.FscclError(
            f'{comm.who()}: {call}: not issued after {limit_ms} ms, because it comes after the '
            f'callbacks of the future of an earlier {turn.call}, and {turn.state()}. A callback '
            f'must not wait for something, such as a lock, that the thread of this {call} has: '
            f'give it back before the {call}, or wait for the future first. This group has ended: '
            f'create it again.',
            c.ERR_TIMEOUT,
            comm.rank,
        )


class _Completer:
    """Completes futures. FSCCL calls `_done` in whatever thread an operation ends. `_done` must not
    wait, so it only queues the name of the turn for the threads of this class. A function that a
    program hung on a future runs in one of these threads and may wait for other futures. Therefore
    a new thread is started whenever all of them are busy."""

    def __init__(self):
        self._queue, self._turns, self._names = queue.SimpleQueue(), {}, itertools.count(1)
        self._lock, self._idle, self._busy = threading.Condition(), 0, 0
        # It lives as long as the process, because FSCCL may call it until then.
        self._callback = c.WORK_DONE(self._done)

    def _done(self, name, _status):
        self._queue.put(name)

    def _add(self, turn):
        name = next(self._names)
        self._turns[name] = turn
        with self._lock:
            if not self._idle:
                self._start()
        return name

    def run_later(self, before, future):
        """Calls `before` in another thread and then completes `future`, even if `before` raised an
        error."""
        self._queue.put(self._add(_Turn(future, _Series(), before)))

    def watch(self, handle, future, comm=None, call=None):
        """Completes `future` when the work `handle` is over, whether it succeeded or failed. `comm`
        and `call` say of which collective it is, if it is of one."""
        turn = _Turn(future, _series() if comm else _Series(), None, comm, call)
        name = self._add(turn)
        try:
            c.check(c.lib.fsccl_work_callback(handle, self._callback, name))
        except c.FscclError:
            self._turns.pop(name)
            turn.end()
            raise

    def _start(self):
        self._idle += 1
        threading.Thread(target=self._run, name='fsccl-futures', daemon=True).start()

    def _run(self):
        while True:
            name = self._queue.get()
            with self._lock:
                self._idle -= 1
                self._busy += 1
                if not self._idle:
                    self._start()
            self._take(self._turns.pop(name))
            with self._lock:
                self._busy -= 1
                self._lock.notify_all()
                if self._idle > 2:
                    return
                self._idle += 1

    def _take(self, turn):
        _here.turn, turn.thread = turn, threading.get_ident()
        if turn.before:
            try:
                turn.before()
            except Exception:  # reading the future calls it again, and raises it there
                pass
        turn.future.set_result(None)
        _here.turn = None
        turn.end()

    def over(self, seconds):
        """Waits until no future is left to complete and no thread is completing one. Returns False
        if this takes longer than so many seconds."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._turns and not self._busy, seconds)


_completer = _Completer()
watch, run_later, futures_over = _completer.watch, _completer.run_later, _completer.over
