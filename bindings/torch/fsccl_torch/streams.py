# SPDX-License-Identifier: Apache-2.0
"""Has all uses of torch.cuda. Tests put a stand-in with the same functions in place of `cuda`, so
that the order of work on streams can be tested without a GPU.

Collectives on tensors of a GPU run on a stream of their own, one for each communicator and device
(Side). That stream waits for what the caller's stream was given before. A wait for the work makes
the current stream wait; the host never waits. The operands of an operation are held until a stream
that waited for it may free them, or until the operation is known to be complete.
"""

import torch


class _Cuda:
    """The functions of torch.cuda that are used."""

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
        """Returns a context in which `stream` is the current one."""
        return torch.cuda.stream(stream)

    @staticmethod
    def handle(stream):
        """Returns the cudaStream_t as a number; 0 is the legacy default stream."""
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
        """Returns a storage over `size` bytes at an address, which somebody else owns."""
        return torch._C._construct_storage_from_data_pointer(address, device, size)

    @staticmethod
    def bytes_of(block, device):
        """Returns a tensor over a Block. The Block lives as long as the tensor or any view of
        it."""
        return torch.as_tensor(block, device=device)

    @staticmethod
    def pluggable_pool(library):
        """Returns a torch.cuda.MemPool that allocates from libfsccl, and its allocator, which must
        live as long as the process."""
        allocator = torch.cuda.memory.CUDAPluggableAllocator(
            library, 'fsccl_torch_malloc', 'fsccl_torch_free'
        )
        return torch.cuda.MemPool(allocator.allocator()), allocator


cuda = _Cuda


def with_index(device):
    """Returns the device with its index, as tensors name it. "cuda" alone is the current device."""
    device = torch.device(device)
    return (
        torch.device('cuda', cuda.current_device())
        if device.type == 'cuda' and device.index is None
        else device
    )


def on_gpu(device):
    return device.type == 'cuda'


def device_of(operands):
    """Returns the device of the first tensor in `operands` (a tensor, None, or a list of these), or
    None."""
    if isinstance(operands, torch.Tensor):
        return operands.device
    for operand in operands or ():
        found = device_of(operand)
        if found is not None:
            return found
    return None


class Block:
    """`size` bytes of device memory in the form in which torch takes memory of other libraries. The
    tensor made of it keeps this object alive."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {
            'shape': (size,),
            'typestr': '|u1',
            'data': (address, False),
            'version': 3,
            'strides': None,
        }


class Side:
    """The stream of one communicator on one device, and the memory that its operations hold."""

    def __init__(self, device):
        self.device, self.stream = device, cuda.new_stream(device)
        self._held = {}  # by the id of an event: the event and its operands, in stream order

    def begin(self):
        """Makes the stream wait for what the current stream was given. Returns the current
        stream."""
        caller = cuda.current_stream(self.device)
        self.stream.wait_event(cuda.record(caller))
        return caller

    def end(self, operands):
        """Returns an event behind what was put on the stream. `operands` live until release() or
        until the event is complete."""
        event = cuda.record(self.stream)
        # The events of a graph that is being captured cannot be queried. Its memory may be given to
        # others in the same graph, so the event keeps the operands until release(), or until the
        # work is gone.
        if cuda.capturing():
            event.operands = operands
        else:
            self._forget()
            self._held[id(event)] = (event, operands)
        return event

    def release(self, event):
        """Stops holding the operands of `event`. The stream on which they were made must wait for
        the event, because it may reuse their memory."""
        self._held.pop(id(event), None)
        event.operands = None

    def finish(self):
        """Waits on the host for all operations, which is done only at the end of a group."""
        self.stream.synchronize()
        self._held.clear()

    def _forget(self):
        while self._held:
            event, _ = next(iter(self._held.values()))
            if not event.query():
                return
            self._held.pop(id(event), None)
