# SPDX-License-Identifier: Apache-2.0
"""Operations in flight: what a collective returns.

A Work keeps the tensors of its operation alive until the operation is over. Its last step, which
copies a staged result into the caller's tensor or reduces, runs exactly once, in the thread that
first learns of the completion. So a second wait() never touches the result again. An operation on a
GPU has this step on its stream (StreamWork).
"""

import torch

from . import _capi as c
from . import streams
from .held import HeldWork
from .turns import run_later, watch
from .untraced import untraced


def run_last(finish):
    """Runs the last step of an operation. Inference mode writes also to inference tensors, and to
    views of tensors that require gradients."""
    with torch.inference_mode():
        finish()


@untraced
class Work(HeldWork):
    """One operation. `handle` is 0 if it is over already. `in_order` says that it is a collective,
    which all ranks issue in one order."""

    def __init__(self, comm, call, handle, keep, result, finish, in_order=True):
        super().__init__()
        self._comm, self._call, self._handle = comm, call, handle
        self._keep, self._result, self._finish, self.in_order = keep, result, finish, in_order
        self._future = None

    def wait(self, timeout=None):
        if self._handle:
            self._comm.wait(self._handle, self._call, c.milliseconds(timeout))
            self._complete()
        return True

    def test(self):
        """Returns True when the operation is over, whether it succeeded or failed. Does not
        wait."""
        handle = self._handle
        if handle:
            status = c.lib.fsccl_work_test(handle)
            if status == c.IN_PROGRESS:
                return False
            if status == c.OK:
                self._complete()
        return True

    def is_success(self):
        handle = self._handle
        return self.test() and (
            not handle or not self._handle or c.lib.fsccl_work_test(handle) == c.OK
        )

    def _complete(self):
        with self._comm.finish_lock:
            if self._handle:
                if self._finish:
                    run_last(self._finish)
                c.lib.fsccl_work_release(self._handle)
                self._comm.pending.pop(self._handle, None)
                self._handle, self._keep, self._finish = 0, None, None

    def future(self):
        with self._comm.finish_lock:
            if self._future is None:
                over = torch.futures.Future()
                if self._handle:
                    # torch reports an error of a future only if a function hung on another future
                    # raises it.
                    self._future = over.then(self._outcome)
                    self.when_over(over)
                else:
                    self._future = over
                    over.set_result(self._result)
            return self._future

    def when_over(self, future):
        """Completes `future` in another thread when the operation has succeeded or failed."""
        with self._comm.finish_lock:
            if self._handle:
                self._comm.watched = True
                watch(self._handle, future, self._comm if self.in_order else None, self._call)
            else:
                run_later(None, future)

    def wait_briefly(self, seconds):
        """Returns when the operation or the time is over. Raises nothing."""
        handle = self._handle
        if handle:
            c.lib.fsccl_work_wait(handle, max(1, int(seconds * 1000)))

    def _outcome(self, _over):
        self.wait()
        return self._result

    def results(self):
        return self._result


@untraced
class StreamWork(HeldWork):
    """One operation on a stream, as torch expects works of GPUs. A wait makes the current stream
    wait for the operation's event, and the host goes on."""

    def __init__(self, comm, call, side, caller, event, result):
        super().__init__()
        self._comm, self._call, self._side, self._caller, self._event, self._result = (
            comm,
            call,
            side,
            caller,
            event,
            result,
        )
        self._future = None

    def wait(self, timeout=None):
        current = streams.cuda.current_stream(self._side.device)
        current.wait_event(self._event)
        if current == self._caller:
            self._side.release(self._event)
        self._comm.check_alive(self._call)
        return True

    def test(self):
        """Returns True when the operation is over. Does not wait."""
        return self._event.query()

    def is_success(self):
        return self.test() and self._comm.state() >= 0

    def future(self):
        if self._future is None:
            self._future = streams.cuda.future(self._side.device)
            with streams.cuda.on(self._side.stream):
                self._future.set_result(self._result)
        return self._future

    def results(self):
        return self._result


@untraced
class Together(HeldWork):
    """Several operations as one work."""

    def __init__(self, works):
        super().__init__()
        self._works, self._future = works, None
        self.in_order = all(work.in_order for work in works)

    def wait(self, timeout=None):
        for work in self._works:
            work.wait(timeout)
        return True

    def test(self):
        return all([work.test() for work in self._works])

    def is_success(self):
        return all(work.is_success() for work in self._works)

    def future(self):
        if self._future is None:
            if self.in_order:  # then the last one is the last to end
                over = self._works[-1].get_future()
            else:
                over = torch.futures.collect_all([work.get_future() for work in self._works])
            self._future = over.then(self._outcome)
        return self._future

    def _outcome(self, over):
        over.value()  # raises the error if one has failed
        self.wait()
        return self.results()

    def results(self):
        return [tensor for work in self._works for tensor in work.results()]
