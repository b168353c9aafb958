# SPDX-License-Identifier: Apache-2.0
"""A unit of FSCCL (parameters that are gathered and freed together) with torch tensors at both
ends.

While a unit is unsharded, each parameter is a view of the slot that the ranks of the host share.
A write of the program to it is seen by this rank only, and is dropped at reshard. The storage of a
parameter is the same in all steps; only the memory behind it is exchanged (SlotView). So views,
saved tensors and nn.Parameters on it remain valid. A use after reshard meets an empty storage and
never another layer's parameters. On a GPU operations are put on the stream that use() names, and
nothing here waits.
"""

import ctypes
import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import _capi as c
from . import streams
from .dtypes import MOVED
from .storage import Memory, shows_memory
from .turns import await_turn


def _sharing(device):
    """Returns how ranks share a slot. On the host they share one, and a page that a rank writes
    becomes that rank's own. On GPUs every rank has its own slot."""
    return c.SHARING_PRIVATE if streams.on_gpu(device) else c.SHARING_COPY_ON_WRITE


class Users:
    """Counts the objects that still need a unit, and knows the storages that may show its memory.
    The unit is gone when no such object is left and no storage shows its memory."""

    def __init__(self):
        self._count, self._storages = 0, []

    def add(self, user):
        self._count += 1
        weakref.finalize(user, self._remove).atexit = False

    def _remove(self):
        self._count -= 1

    def add_storage(self, storage):
        """Adds a storage by a weak reference. A storage may outlive its owner in views while it
        shows the unit's memory, so are_gone() asks the storage itself."""
        self._storages.append(StorageWeakRef(storage))

    def are_gone(self):
        return self._count == 0 and not any(shows_memory(storage) for storage in self._storages)


class SlotView:
    """A flat tensor whose memory open() puts in place and close() takes away. `size` is the size of
    that memory; the tensor may be longer, because FSDP2 pads it."""

    def __init__(self, tensor, size=None, users=None):
        self.tensor, self._storage = tensor, tensor.untyped_storage()
        self._bytes, self._address, self._memory = (
            tensor.nbytes if size is None else size,
            None,
            None,
        )
        self._storage.resize_(0)
        self.is_open = False
        if users:
            users.add_storage(self._storage)

    def open(self, address):
        if self._bytes == 0:
            return
        if address != self._address:
            self._memory, self._address = Memory(address, self._bytes, self._storage_at), address
        self._memory.put_behind(self._storage)
        self.is_open = True

    def _storage_at(self, address, size):
        if streams.on_gpu(self.tensor.device):
            return streams.cuda.storage_at(address, size, self.tensor.device)
        memory = (ctypes.c_byte * size).from_address(address)
        return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()

    def close(self):
        if self.is_open:
            self._memory.take_away(self._storage)
            self.is_open = False


class Handle:
    """The fsccl_unit_t of a unit. It outlives the unit's Python object (memory.Pool.take_back()).
    `stream` is the CUDA stream of the unit's calls on a GPU, as a number."""

    def __init__(self, value, users):
        self.value, self.users, self.stream = value, users, None
        self.counters, self.trains, self.frozen_bytes = [], False, 0  # see Parameters

    def versions(self):
        return [counter._version for counter in self.counters]

    def close(self):
        if self.value:
            # A gather that nobody waited for is waited for here.
            c.lib.fsccl_unit_reshard(self.value, self.stream)
            if c.lib.fsccl_unit_destroy(self.value) == c.OK:
                self.value = None
        return self.value is None


def _counters(param):
    """Returns two tensors without memory that share version counters with `param`. The first has
    that of the DTensor, which an optimizer raises. The second has that of its local part, which a
    write to to_local() raises. The tensors may outlive `param`."""
    with torch.inference_mode(False), torch.no_grad():
        whole, part = param.detach(), param._local_tensor.detach()
        part.data = part.new_empty(0)
        whole._local_tensor = part
    return whole, part


def _pointer(codec):
    return ctypes.pointer(codec) if codec is not None else None


class _Unit:
    """An fsccl_unit. `shapes` are those of the whole parameters, which are cut along their first
    dimension, and `shards` are this rank's parts. `config` has the other fields of
    fsccl_unit_config_t. Making it is collective."""

    def __init__(self, comm, name, shapes, shards, flags, sharded_grads, users, **config):
        self._comm, self._name, self.size = comm, name, len(shapes)
        self._device = shards[0].device
        self._on_stream = streams.on_gpu(self._device)
        pool = comm.pool_of(self._device)
        params = (c.Param * self.size)()
        for param, shape, shard, grad in zip(params, shapes, shards, sharded_grads):
            param.dims, param.dtype, param.flags, param.tied_to = (
                len(shape),
                MOVED[shard.dtype][0],
                flags,
                -1,
            )
            param.shape[: len(shape)] = shape
            param.shard = shard.data_ptr() or None
            param.sharded_grad = grad.data_ptr() or None if grad is not None else None
        settings = c.UnitConfig(
            name=name.encode(),
            layout=c.LAYOUT_PER_PARAM,
            shard_comm=comm.handle,
            marks_changes=1,
            **config,
        )
        handle = ctypes.c_void_p()
        await_turn(comm, f"fsdp2: the creation of unit '{name}'")
        with comm.lock:
            settings.pool = pool.open('fsdp2: the first gather')
            self._check(
                c.lib.fsccl_unit_create(
                    ctypes.byref(settings), params, self.size, ctypes.byref(handle)
                ),
                'made',
            )
        self._handle, self._work = Handle(handle.value, users), ctypes.c_void_p()
        self._work_reference = None if self._on_stream else ctypes.byref(self._work)
        users.add(self)
        pool.units.append(self._handle)

    @property
    def handle(self):
        return self._handle.value

    def use(self, stream):
        """Names the stream of the next calls, on a GPU."""
        self._handle.stream = streams.cuda.handle(stream)

    def codec_report(self):
        """Returns what the codec has done so far (fsccl_codec_report_t), or None if there is no
        codec."""
        if not self._coded:
            return None
        report = c.CodecReport()
        self._check(
            c.lib.fsccl_unit_codec(self.handle, ctypes.byref(report)), 'asked for its codec'
        )
        return report

    def _check(self, status, what):
        if status < 0:
            raise self._comm.failure(status, f"fsdp2: unit '{self._name}' {what}")

    def _finish(self, what):
        if self._work.value:
            self._comm.wait(self._work, f"fsdp2: unit '{self._name}' {what}")
            self._release()

    def _release(self):
        if self._work.value:
            c.lib.fsccl_work_release(self._work)
            self._work.value = None


class Parameters(_Unit):
    """The gather of some parameters, without gradients. The caller keeps the shards alive. `keep`
    is a KEEP_... and its number of bytes."""

    def __init__(self, comm, name, shapes, shards, wire_dtype, keep, users, codec=None):
        super().__init__(
            comm,
            name,
            shapes,
            shards,
            c.PARAM_FROZEN,
            [None] * len(shapes),
            users,
            wire_dtype=MOVED[wire_dtype][0],
            reduce_dtype=c.FLOAT32,
            grad_dtype=c.FLOAT32,
            sharing=_sharing(shards[0].device),
            keep=keep[0],
            keep_budget_bytes=keep[1],
            gather_codec=_pointer(codec),
        )
        self._coded = codec is not None
        # These are the offsets of the parameters in the slot, counted from the first that is not
        # empty.
        self._offsets = None
        self._view = c.View()

    def set_shards(self, shards):
        """Tells the unit that the memory of the shards was replaced."""
        places = (ctypes.c_void_p * self.size)(*[shard.data_ptr() or None for shard in shards])
        self._check(c.lib.fsccl_unit_set_shards(self.handle, places), 'given other shards')

    def watch(self, params):
        """Makes versions() return the versions of these DTensors from now on."""
        self._handle.counters = [counter for param in params for counter in _counters(param)]

    def versions(self):
        return self._handle.versions()

    def promise(self, trains, frozen_bytes):
        """Says whether an optimizer is going to write to the shards, and how many bytes stay
        gathered."""
        self._handle.trains, self._handle.frozen_bytes = trains, frozen_bytes

    def mark_changed(self):
        c.lib.fsccl_unit_mark_changed(self.handle)

    def unshard(self):
        await_turn(self._comm, f"fsdp2: the gather of unit '{self._name}'")
        with self._comm.lock:
            self._check(
                c.lib.fsccl_unit_unshard(self.handle, 0, self._handle.stream, self._work_reference),
                'unsharded',
            )

    def wait(self):
        """Waits until the parameters are gathered, and returns their addresses. On a GPU it does
        not wait for the stream."""
        self._finish('unsharded')
        if self._offsets is None:
            addresses = [self._address(i) or 0 for i in range(self.size)]
            self._first = next((i for i, address in enumerate(addresses) if address), 0)
            self._offsets = [address - addresses[self._first] for address in addresses]
        base = self._address(self._first) or 0
        return [base + offset for offset in self._offsets]

    def _address(self, index):
        self._check(
            c.lib.fsccl_unit_param(self.handle, index, ctypes.byref(self._view)),
            'asked for a parameter',
        )
        return self._view.data

    def reshard(self):
        if self.handle:  # an error is not raised here: it comes with the next use
            with self._comm.lock:
                c.lib.fsccl_unit_reshard(self.handle, self._handle.stream)
            self._release()


class Gradients(_Unit):
    """The reduction of the whole gradients of some parameters, in `dtype`, to this rank's parts of
    the sums, in `sum_dtype`."""

    def __init__(self, comm, name, shapes, shards, dtype, sum_dtype, codec=None):
        # Nothing is written to this tensor, because each reduction names its places.
        place = torch.empty(1, dtype=sum_dtype, device=shards[0].device)
        super().__init__(
            comm,
            name,
            shapes,
            shards,
            0,
            [place] * len(shapes),
            Users(),
            wire_dtype=MOVED[shards[0].dtype][0],
            reduce_dtype=MOVED[dtype][0],
            grad_dtype=MOVED[sum_dtype][0],
            sharing=c.SHARING_READ_ONLY,
            reduce_codec=_pointer(codec),
        )
        self._coded = codec is not None
        self._grads, self._places = (ctypes.c_void_p * self.size)(), (ctypes.c_void_p * self.size)()

    def reduce(self, grads, places, scale, accumulate):
        """Submits a reduction. The tensors, and the memory at the addresses `places`, must live
        until wait()."""
        self._grads[:] = [grad.data_ptr() or None for grad in grads]
        self._places[:] = places
        config = c.ReduceConfig(
            scale=scale, accumulate=int(accumulate), grads=self._grads, sharded_grads=self._places
        )
        await_turn(self._comm, f"fsdp2: the reduction of unit '{self._name}'")
        with self._comm.lock:
            self._check(
                c.lib.fsccl_unit_reduce_grads(
                    self.handle,
                    ctypes.byref(config),
                    self._handle.stream,
                    self._work_reference,
                ),
                'reduced',
            )

    def wait(self):
        self._finish('reduced')
