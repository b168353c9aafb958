# SPDX-License-Identifier: Apache-2.0
"""The state that the groups of FSDP2 on one communicator share. It keeps none of them: a group
lives as long as its model."""

import weakref

from . import streams


class Domain:
    """The state that the groups on one communicator share: the reduction in flight, and where a
    step of training begins."""

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
        """The Domain of a communicator, made at first use and closed with it."""
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
        """The pool plans a step from the one before. A step begins where a group is gathered for
        forward again: a rule that gives the same answer on all ranks, whatever else one of them
        does alone."""
        if group in self._gathered:
            self.comm.pool_of(group.fsdp.device).step()
            self._gathered.clear()
        self._gathered.add(group)

    def trained(self, device):
        """An object that is another one as soon as anything was written to shards on `device`, by
        their versions; None where nothing is trained."""
        versions, known = self.comm.pool_of(device).versions(), self._versions.get(device)
        if versions == known:
            return known
        self._versions[device] = versions
        return versions

    def take_back(self, device):
        """Ends the units of models that are gone on all ranks. Collective, and with them a step
        ends: none of what was gathered in it may ever come again."""
        self.flush()
        if self.comm.pool_of(device).take_back():
            self.comm.pool_of(device).step()
            self._gathered.clear()

    def gathering(self, device):
        """A stream for the gathers that a program asks for itself."""
        if self._stream is None:
            self._stream = streams.cuda.new_stream(device)
        return self._stream

    def hold(self, device, grads, event):
        """Gradients live until the next reduction, or the end of backward: then the current stream
        waits for `event`, the end of theirs. Backward made them there, and may have their memory
        back behind that."""
        self.let_go(device)
        self._held, self._event = list(grads), event

    def let_go(self, device):
        if self._event is not None:
            streams.cuda.current_stream(device).wait_event(self._event)
        self._held = self._event = None

    def flush(self, keep=True):
        """Ends the reduction in flight; not `keep`: its results are not wanted."""
        reduction, self.reducing = self.reducing, None
        if reduction is not None:
            reduction.finish(keep)
