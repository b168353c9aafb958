# SPDX-License-Identifier: Apache-2.0
"""Everything here that touches torch.cuda, so that what orders work on streams can be tested
without a GPU: by putting a stand-in in place of `cuda`, which has these functions and no others.

Collectives on tensors of a GPU run on a stream of their own, one for each communicator and device
(Side). It waits for what the caller's stream was given before, and whoever waits for the work makes
its own stream wait. The host never waits. Memory is not given back early: what an operation uses is
held until a stream that waited for it may free it, or until it is known to be complete.
"""

import torch


class _Cuda:
    """torch.cuda, as far as it is used."""

    @staticmethod
    def current_device():
        return torch.cuda.current_device()

    @staticmethod
    def current_stream(device):
        return torch.cuda.current_stream(device)

    @staticmethod
    def new_stream(device):
        return torch.cuda.Stream(device)

    @staticmethod
    def on(stream):
        """A context in which `stream` is the current one."""
        return torch.cuda.stream(stream)

    @staticmethod
    def handle(stream):
        """The cudaStream_t, a number; 0 is the legacy default stream."""
        return stream.cuda_stream

    @staticmethod
    def record(stream):
        event = torch.cuda.Event()
        event.record(stream)
        return event

    @staticmethod
    def capturing():
        return torch.cuda.is_current_stream_capturing()

    @staticmethod
    def future(device):
        return torch.futures.Future(devices=[device])

    @staticmethod
    def storage_at(address, size, device):
        """The storage over `size` bytes at an address, which somebody else owns."""
        return torch._C._construct_storage_from_data_pointer(address, device, size)

    @staticmethod
    def bytes_of(block, device):
        """A tensor over a Block, which lives as long as it or any view of it."""
        return torch.as_tensor(block, device=device)

    @staticmethod
    def pluggable_pool(library):
        """A torch.cuda.MemPool that libfsccl serves, and the allocator, which must live as long as
        the process."""
        allocator = torch.cuda.memory.CUDAPluggableAllocator(
            library, 'fsccl_torch_malloc', 'fsccl_torch_free'
        )
        return torch.cuda.MemPool(allocator.allocator()), allocator


cuda = _Cuda


def with_index(device):
    """The device as tensors name it: "cuda" is the current one."""
    device = torch.device(device)
    return (
        torch.device('cuda', cuda.current_device())
        if device.type == 'cuda' and device.index is None
        else device
    )


def on_gpu(device):
    return device.type == 'cuda'


def device_of(operands):
    """The device of the first tensor in `operands` (a tensor, None, or a list of these), or
    None."""
    if isinstance(operands, torch.Tensor):
        return operands.device
    for operand in operands or ():
        found = device_of(operand)
        if found is not None:
            return found
    return None


class Block:
    """`size` bytes of device memory as torch takes them from other libraries: the tensor made of it
    keeps this object."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {
            'shape': (size,),
            'typestr': '|u1',
            'data': (address, False),
            'version': 3,
            'strides': None,
        }


class Side:
    """The stream on which one communicator works on one device, and what its operations hold."""

    def __init__(self, device):
        self.device, self.stream = device, cuda.new_stream(device)
        self._held = {}  # id of an event -> it and operands, in the order of the stream

    def begin(self):
        """Makes work that is put on the stream from now on follow what the current stream was
        given. Returns that stream."""
        caller = cuda.current_stream(self.device)
        self.stream.wait_event(cuda.record(caller))
        return caller

    def end(self, operands):
        """The event behind what was put on the stream. `operands` live until release() or its
        completion."""
        event = cuda.record(self.stream)
        if not cuda.capturing():  # a graph keeps its memory, and its events cannot be asked
            self._forget()
            self._held[id(event)] = (event, operands)
        return event

    def release(self, event):
        """The stream on which the operands were made waits for `event`: it may have their memory
        back."""
        self._held.pop(id(event), None)

    def finish(self):
        """Waits for all of it; the host does, at the end of a group."""
        self.stream.synchronize()
        self._held.clear()

    def _forget(self):
        while self._held:
            event, _ = next(iter(self._held.values()))
            if not event.query():
                return
            self._held.pop(id(event), None)
