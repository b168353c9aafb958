# SPDX-License-Identifier: Apache-2.0
"""A stand-in for torch.cuda's streams and events, in host memory. It carries out work on a stream
only when somebody waits for it, as late as the order allows. So a test fails if a result is read,
or memory reused, without anything that orders this behind the work.

    # fsccl_torch.streams uses it, and takes every tensor for one of a GPU
    with StandIn() as gpu: ...
"""

import contextlib

import torch
from fsccl_torch import streams


class Stream:
    def __init__(self, gpu, number):
        self.gpu, self.number, self.pending = gpu, number, []

    def put(self, action):
        self.pending.append(action)

    def wait_event(self, event):
        self.put(event.synchronize)

    def wait_stream(self, other):
        self.wait_event(Event(other))

    def synchronize(self, until=None):
        """Carries out the stream's work in order, up to the marker `until`."""
        while self.pending:
            action = self.pending.pop(0)
            action()
            if action is until:
                return


class Event:
    def __init__(self, stream):
        self.stream, self.done = stream, False
        self._marker = self._reached
        stream.put(self._marker)

    def _reached(self):
        self.done = True

    def query(self):
        return self.done

    def synchronize(self):
        if not self.done:
            self.stream.synchronize(self._marker)


class StandIn:
    """Has the same functions as streams._Cuda."""

    def __init__(self):
        self.streams, self.graph = {}, False
        self._current = self.new_stream(None)

    def __enter__(self):
        self._before = streams.cuda, streams.on_gpu
        streams.cuda, streams.on_gpu = self, lambda device: True
        return self

    def __exit__(self, *_):
        streams.cuda, streams.on_gpu = self._before

    def current_device(self):
        return 3

    def current_stream(self, device):
        return self._current

    def new_stream(self, device):
        stream = Stream(self, len(self.streams) + 1)
        self.streams[stream.number] = stream
        return stream

    @contextlib.contextmanager
    def on(self, stream):
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    @staticmethod
    def handle(stream):
        return stream.number

    @staticmethod
    def record(stream):
        return Event(stream)

    def capturing(self):
        return self.graph

    @staticmethod
    def future(device):
        return torch.futures.Future()

    @staticmethod
    def storage_at(address, size, device):
        return torch._C._construct_storage_from_data_pointer(address, device, size)
