# SPDX-License-Identifier: Apache-2.0
"""Futures of operations: the threads that complete them, and the order of collectives that are
issued by functions hung on futures.

Ranks must issue collectives in one order. A function that a program hangs on a future runs in
another thread, at a moment that no other rank knows. A collective that it issues could therefore
overtake the program's own collectives on one rank and not on another. To prevent this, each future
of a collective has a turn. The turns of a thread are in the order of its calls of get_future(), and
a collective waits for its turn:

- A collective of the program waits until the turns of all earlier futures of its thread are over.
- A collective of a function hung on a future waits until the turns before that future's are over.
- A turn is over when the functions hung on the future have returned, and the turns of the futures
  that they asked for are over.

So the order is that of a program in which each future completes where get_future() was called.
Functions that issue no collective wait for nothing. Futures of messages have no turn, because
messages match by their ranks and tags.
"""

import collections
import itertools
import queue
import threading

from . import _capi as c

_changed = threading.Condition()  # notified when a turn is over


class _Series:
    """The turns, in their order, for which one thread, or the functions of one turn, must wait."""

    def __init__(self):
        self._turns = collections.deque()

    def add(self, turn):
        self._turns.append(turn)

    def first(self):
        """Returns the first turn that is not over, or None. Needs the lock of _changed."""
        while self._turns and self._turns[0].is_over():
            self._turns.popleft()
        return self._turns[0] if self._turns else None

    def is_empty(self):
        return not self._turns or self.first() is None


class _Turn:
    def __init__(self, future, series, before=None):
        self.future, self.series, self.before, self.inner, self.returned = (
            future,
            series,
            before,
            _Series(),
            False,
        )
        series.add(self)

    def is_over(self):
        return self.returned and self.inner.is_empty()

    def may_issue(self):
        return self.series.first() is self and self.inner.is_empty()


class _OfThread(threading.local):
    """The turn whose functions a thread runs, and the series of the futures that the thread asked
    for. Each may be None. Every collective reads both. They are attributes of the class because an
    attribute that a thread lacks takes longer to look up."""

    turn: '_Turn | None' = None
    series: '_Series | None' = None


_here = _OfThread()


def _series():
    """Returns the series for a future that this thread asks for now."""
    if _here.turn is not None:
        return _here.turn.inner
    if _here.series is None:
        _here.series = _Series()
    return _here.series


def await_turn():
    """Waits until all ranks issue this thread's collective next. It is called before each
    collective."""
    turn, series = _here.turn, _here.series
    if turn is not None:
        with _changed:
            _changed.wait_for(turn.may_issue)
    elif series is not None and series._turns:
        with _changed:
            _changed.wait_for(series.is_empty)


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

    def watch(self, handle, future, in_order):
        """Completes `future` when the work `handle` is over, whether it succeeded or failed."""
        turn = _Turn(future, _series() if in_order else _Series())
        name = self._add(turn)
        try:
            c.check(c.lib.fsccl_work_callback(handle, self._callback, name))
        except c.FscclError:
            self._turns.pop(name)
            self._end(turn)
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
        _here.turn = turn
        if turn.before:
            try:
                turn.before()
            except Exception:  # reading the future calls it again, and raises it there
                pass
        turn.future.set_result(None)
        _here.turn = None
        self._end(turn)

    @staticmethod
    def _end(turn):
        turn.future = turn.before = None
        with _changed:
            turn.returned = True
            _changed.notify_all()

    def over(self, seconds):
        """Waits until no future is left to complete and no thread is completing one. Returns False
        if this takes longer than so many seconds."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._turns and not self._busy, seconds)


_completer = _Completer()
watch, run_later, futures_over = _completer.watch, _completer.run_later, _completer.over
