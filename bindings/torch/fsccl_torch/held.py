# SPDX-License-Identifier: Apache-2.0
"""Forwards calls to a Work written in Python that torch itself does not forward.

A backend's method returns a Work to C++, which wraps it in a holder. The holder forwards wait() and
get_future(), and answers all other calls like a Work that never completes. install() replaces the
methods below of torch's class. They set a mark and ask the holder for its future. The Work behind
the holder sees the mark and makes itself known, and the method then calls it directly.
"""

import threading

import torch
import torch.distributed as dist

_asking = threading.local()  # on: the mark is set; found: the Work that saw it
_nothing: torch.futures.Future[None] = torch.futures.Future()
_nothing.set_result(None)


class HeldWork(dist._Work):
    """A Work in Python. Subclasses have the functions future(), test(), is_success() and
    results()."""

    in_order = True  # it is a collective, which all ranks issue in one order

    def get_future(self):
        if getattr(_asking, 'on', False):
            _asking.found = self
            return _nothing
        return self.future()

    def is_completed(self):
        return self.test()

    def result(self):
        return self.results()

    def synchronize(self):
        self.wait()


def _behind(holder):
    """Returns the Work in Python that a holder has, or None."""
    if type(holder) is not dist._Work:
        return None
    _asking.on, _asking.found = True, None
    try:
        holder.get_future()
    except RuntimeError:  # works of another backend may have no future
        pass
    finally:
        _asking.on = False
    return _asking.found


def _asked_of_both(name, torchs):
    def method(self):
        work = _behind(self)
        return torchs(self) if work is None else getattr(work, name)()

    method.__name__, method.__doc__ = name, torchs.__doc__
    return method


def install():
    """Replaces the methods of torch's class, once, when the first group of FSCCL is made."""
    if getattr(dist._Work, '_fsccl', False):
        return
    dist._Work._fsccl = True
    for name in ('is_completed', 'is_success', 'result', 'synchronize', '_source_rank'):
        if hasattr(dist._Work, name):
            setattr(dist._Work, name, _asked_of_both(name, getattr(dist._Work, name)))
