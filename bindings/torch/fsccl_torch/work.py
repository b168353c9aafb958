# SPDX-License-Identifier: Apache-2.0
"""Operations in flight: what a collective returns, and the threads that complete its futures.

A Work keeps the tensors of its operation alive until the operation is over. Its last step (copying a staged result into the
caller's tensor, folding) runs exactly once, in the thread that first learns of the completion; so a second wait() never touches
the result again. Operations on a GPU have that step on their stream, and end there (StreamWork).
"""

import itertools
import queue
import threading

import torch
import torch.distributed as dist

from . import _capi as c
from . import streams


class Work(dist._Work):
    """One operation. `handle` is 0 when it is over already."""

    def __init__(self, comm, call, handle, keep, result, finish):
        super().__init__()
        self._comm, self._call, self._handle = comm, call, handle
        self._keep, self._result, self._finish = keep, result, finish
        self._future = None

    def wait(self, timeout=None):
        if self._handle:
            milliseconds = int(timeout.total_seconds() * 1000) if timeout else 0
            self._comm.wait(self._handle, self._call, milliseconds)
            self._complete()
        return True

    def test(self):
        """True when the operation is over, well or not; does not wait."""
        handle = self._handle
        if handle:
            status = c.lib.fsccl_work_test(handle)
            if status == c.IN_PROGRESS:
                return False
            if status == c.OK:
                self._complete()
        return True

    def _complete(self):
        with self._comm.finish_lock:
            if self._handle:
                if self._finish:
                    with torch.no_grad():
                        self._finish()
                c.lib.fsccl_work_release(self._handle)
                self._comm.pending.pop(self._handle, None)
                self._handle, self._keep, self._finish = 0, None, None

    def get_future(self):
        with self._comm.finish_lock:
            if self._future is None:
                over = torch.futures.Future()
                if self._handle:
                    # An error reaches torch's side of a future only out of a function hung on another.
                    self._future = over.then(self._outcome)
                    _completer.watch(self, over)
                else:
                    self._future = over
                    over.set_result(self._result)
            return self._future

    def _outcome(self, _over):
        self.wait()
        return self._result


class StreamWork(dist._Work):
    """One operation on a stream, as torch expects works of GPUs: waiting for it is putting an event in front of what the current
    stream is given next; the host goes on."""

    def __init__(self, comm, call, side, caller, event, result):
        super().__init__()
        self._comm, self._call, self._side, self._caller, self._event, self._result = comm, call, side, caller, event, result
        self._future = None

    def wait(self, timeout=None):
        current = streams.cuda.current_stream(self._side.device)
        current.wait_event(self._event)
        if current == self._caller:
            self._side.release(self._event)
        self._comm.check_alive(self._call)
        return True

    def synchronize(self):
        self.wait()

    def test(self):
        """True when the operation is over; does not wait."""
        return self._event.query()

    is_completed = test

    def is_success(self):
        return self.test() and self._comm.state() >= 0

    def get_future(self):
        if self._future is None:
            self._future = streams.cuda.future(self._side.device)
            with streams.cuda.on(self._side.stream):
                self._future.set_result(self._result)
        return self._future


class Together(dist._Work):
    """Several operations as one."""

    def __init__(self, works):
        super().__init__()
        self._works, self._future = works, None

    def wait(self, timeout=None):
        for work in self._works:
            work.wait(timeout)
        return True

    def get_future(self):
        if self._future is None:
            futures = [work.get_future() for work in self._works]
            self._future = torch.futures.collect_all(futures).then(
                lambda done: [tensor for future in done.value() for tensor in future.value()])
        return self._future


class _Completer:
    """Completes futures. FSCCL calls `_done` wherever an operation ends; that must not wait, so it only names the work to the
    threads here. A function that a user hung on a future runs in one of them and may wait for other futures: whenever all
    threads are busy there is one more."""

    def __init__(self):
        self._queue, self._futures, self._names = queue.SimpleQueue(), {}, itertools.count(1)
        self._lock, self._idle, self._busy = threading.Condition(), 0, 0
        self._callback = c.WORK_DONE(self._done)  # lives as long as the process: FSCCL may call it until then

    def _done(self, name, _status):
        self._queue.put(name)

    def watch(self, work, over):
        name = next(self._names)
        self._futures[name] = over
        with self._lock:
            if not self._idle:
                self._start()
        work._comm.watched = True
        try:
            c.check(c.lib.fsccl_work_callback(work._handle, self._callback, name))
        except c.FscclError:
            self._futures.pop(name)
            raise

    def _start(self):
        self._idle += 1
        threading.Thread(target=self._run, name="fsccl-futures", daemon=True).start()

    def _run(self):
        while True:
            name = self._queue.get()
            with self._lock:
                self._idle -= 1
                self._busy += 1
                if not self._idle:
                    self._start()
            self._futures.pop(name).set_result(None)
            with self._lock:
                self._busy -= 1
                self._lock.notify_all()
                if self._idle > 2:
                    return
                self._idle += 1

    def over(self, seconds):
        """Waits until no future is to be completed any more, and no thread is at it. False: not in so many seconds."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._futures and not self._busy, seconds)


_completer = _Completer()
futures_over = _completer.over
