# SPDX-License-Identifier: Apache-2.0
"""The state that the groups of FSDP2 on one communicator share. It holds no reference to a group
that would keep it alive: a group lives as long as its model."""

import weakref

from . import streams


class Domain:
    """Knows the reduction in flight on one communicator, and where each step of training begins."""

    def __init__(self, comm):
        self.comm, self.groups = comm, weakref.WeakSet()
        self.reducing, self._gathered = None, weakref.WeakSet()
        self._versions = {}
        self._stream, self._held, self._event = (
            None,
            None,
            None,
        )  # on a GPU: for gathers, gradients in use, and until when

    @classmethod
    def of(cls, comm):
        """Returns the Domain of a communicator. It is made at first use and closed with the
        communicator."""
        known = next(
            (dependent for dependent in comm.dependents if isinstance(dependent, cls)), None
        )
        if known is None:
            known = cls(comm)
            comm.dependents.append(known)
        return known

    def close(self):
        for group in list(self.groups):
            group.close()

    def mark_step(self, group):
        """Tells the pool where a step begins, because the pool plans each step from the one before.
        A step begins when some group is gathered for forward a second time. This rule gives the
        same answer on all ranks, whatever else one of them does alone."""
        if group in self._gathered:
            self.comm.pool_of(group.fsdp.device).step()
            self._gathered.clear()
        self._gathered.add(group)

    def trained(self, device):
        """Returns an object that stays the same until something is written to shards on `device`,
        as their versions show. Returns None if nothing is trained."""
        versions, known = self.comm.pool_of(device).versions(), self._versions.get(device)
        if versions == known:
            return known
        self._versions[device] = versions
        return versions

    def take_back(self, device):
        """Ends the units of models that are gone on all ranks. Collective. If there were any, the
        pool's step ends too, because what was gathered in it may never be gathered again."""
        self.flush()
        if self.comm.pool_of(device).take_back():
            self.comm.pool_of(device).step()
            self._gathered.clear()

    def gathering(self, device):
        """Returns the stream for gathers that the program asks for itself."""
        if self._stream is None:
            self._stream = streams.cuda.new_stream(device)
        return self._stream

    def hold(self, device, grads, event):
        """Keeps gradients alive until the next reduction or the end of backward. let_go() then
        makes the current stream wait for `event`, which follows their last use. Backward allocated
        them on that stream, so their memory may be reused on it after the wait."""
        self.let_go(device)
        self._held, self._event = list(grads), event

    def let_go(self, device):
        if self._event is not None:
            streams.cuda.current_stream(device).wait_event(self._event)
        self._held = self._event = None

    def flush(self, keep=True):
        """Ends the reduction in flight. If not `keep`, its results are dropped."""
        reduction, self.reducing = self.reducing, None
        if reduction is not None:
            reduction.finish(keep)
