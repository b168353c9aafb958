# SPDX-License-Identifier: Apache-2.0
"""Goes on after ranks have died. Functions tell which ranks these are, make a process group of
those that are left, and redistribute the state of training among them, in memory.

    # Every survivor gets the error at its next collective.
    except DistBackendError:
        fsccl_torch.shrink()                         # the default group is now one of the survivors
        mesh = init_device_mesh("cpu", ...)
        step = fsccl_torch.redistribute(old_tensors, new_tensors, version=step)

examples/torch/hsdp_survives.py is a whole program.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from . import _capi as c
from .backend import FscclBackend, handed_over
from .base import BACKEND
from .dtypes import MOVED
from .state import written

STATES = ('alive', 'suspect', 'left', 'dead')  # in the order of fsccl_peer_state_t


def _backend(group):
    backend = (group or dist.group.WORLD)._get_backend(torch.device('cpu'))
    if not isinstance(backend, FscclBackend):
        raise TypeError(
            f"fsccl_torch: the group's backend is {backend.name()}: create it with 'fsccl'"
        )
    return backend


def peer_states(group: dist.ProcessGroup | None = None) -> list[str]:
    """Returns the state of each rank of the group, as far as this rank knows: "alive", "suspect",
    "left" or "dead". Sends nothing."""
    comm, state, states = _backend(group)._comm, ctypes.c_int(), []
    for rank in range(comm.size):
        c.check(c.lib.fsccl_comm_peer_state(comm.handle, rank, ctypes.byref(state)))
        states.append(STATES[state.value])
    return states


def shrink(group: dist.ProcessGroup | None = None) -> dist.ProcessGroup:
    """Makes a process group of the ranks of `group` (by default the default group) that are alive,
    as torch.distributed.shrink_group() does. The survivors agree which ranks are gone. Collective
    over the survivors. Operations of the group in flight end with an error. If `group` is the
    default group, all other groups are destroyed."""
    lost = _backend(group).survive()
    if not lost:
        raise c.FscclError(
            f'{_backend(group)._comm.who()}: shrink: all its ranks live, and its operations were '
            f'ended: make a new '
            'group of all ranks',
            c.ERR_INVALID_STATE,
        )
    if BACKEND:
        return dist.shrink_group(lost, group=group, shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    return _default_group_anew(_backend(group))


def _default_group_anew(old):
    """Does what torch.distributed.shrink_group() does for the default group. Before 2.14 torch
    cannot do it itself, because the group is written in Python."""
    if old is not dist.group.WORLD:
        raise c.FscclError(
            f'{old._comm.who()}: shrink: before torch 2.14 only the default group can be made '
            f'smaller: shrink that, '
            'and make new groups',
            c.ERR_NOT_AVAILABLE,
        )
    (comm, lost), old._survivors = old._survivors, None
    name, store, timeout = (
        dist.get_backend_config(),
        dist.distributed_c10d._get_default_store(),
        old.options._timeout,
    )
    dist.destroy_process_group()
    handed_over.append(comm)
    dist.init_process_group(
        name,
        store=dist.PrefixStore(f'without {lost}', store),
        rank=comm.rank,
        world_size=comm.size,
        timeout=timeout,
    )
    return dist.group.WORLD


def redistribute(
    old: Iterable[DTensor],
    new: Iterable[DTensor],
    *,
    group: dist.ProcessGroup | None = None,
    version: int = 0,
    limit_bytes: int = 0,
) -> int:
    """Fills the DTensors `new` from what the ranks of `group` hold of the DTensors `old`.
    Collective.

    Both are lists of the same tensors in the same order: parameters or states of an optimizer. They
    are sharded along their first dimension over one dimension of a mesh, and may be replicated over
    others (FSDP2, HSDP), over any number of ranks. No byte is asked of a rank that is not in
    `group`.

    version: says which version `old` has on this rank, for example the number of steps. Only shards
    of one version are combined: the newest version of which all shards are there. This version is
    returned. If there is none, all ranks get an FscclError that names what is missing.

    limit_bytes: memory for the exchange; 0 means 64 MiB."""
    old, new = list(old), list(new)
    if len(old) != len(new) or not old:
        raise ValueError(
            f'fsccl_torch.redistribute: {len(old)} old tensors and {len(new)} new ones: give the same '
            f'list of both'
        )
    config = c.RedistributeConfig(count=len(old), version=version, limit_bytes=limit_bytes)
    params, buffers = (c.Param * len(old))(), (c.Redistributed * len(old))()
    config.params = params
    config.from_, config.to = _sharding(old), _sharding(new)
    locals_ = [(_local(before), _local(after)) for before, after in zip(old, new)]
    for index, (before, after, (given, taken)) in enumerate(zip(old, new, locals_)):
        if before.shape != after.shape or before.dtype != after.dtype:
            raise ValueError(
                f'fsccl_torch.redistribute: tensor {index} is {tuple(before.shape)} of {before.dtype}, '
                f'and was to become '
                f'{tuple(after.shape)} of {after.dtype}: both are the same'
            )
        code, per = MOVED[before.dtype]
        params[index].dims, params[index].dtype, params[index].tied_to = before.dim() + 1, code, -1
        params[index].shape[: before.dim() + 1] = [*before.shape, per]
        buffers[index].param, buffers[index].dtype = index, code
        buffers[index].from_, buffers[index].to = given.data_ptr() or None, taken.data_ptr() or None
    comm, dealt = _backend(group)._comm, ctypes.c_uint64()
    with comm.lock:
        status = c.lib.fsccl_redistribute(
            ctypes.byref(config), buffers, len(old), comm.handle, ctypes.byref(dealt)
        )
        if status < 0:
            raise comm.failure(status, 'redistribute')
    written(taken for _, taken in locals_)
    return dealt.value


def _local(tensor):
    local = tensor.to_local().detach()
    if local.device.type != 'cpu' or not local.is_contiguous():
        raise ValueError(
            f'fsccl_torch.redistribute: a local shard on {local.device}, '
            f'{"" if local.is_contiguous() else "not "}'
            'contiguous: it carries contiguous memory of the host'
        )
    return local


def _sharding(tensors):
    """Returns how the tensors are sharded, which must be the same for all of them, and this rank's
    place."""
    found = {_sharding_of(tensor) for tensor in tensors}
    if len(found) > 1:
        raise ValueError(
            f'fsccl_torch.redistribute: tensors over '
            f'{" and over ".join(str(ranks) for ranks, _ in sorted(found))} shards: '
            'call it for each kind'
        )
    ranks, rank = found.pop()
    return c.Sharding(c.LAYOUT_PER_PARAM, ranks, rank)


def _sharding_of(tensor):
    if not isinstance(tensor, DTensor):
        raise TypeError(
            f'fsccl_torch.redistribute: {type(tensor).__name__} is no DTensor: what is whole on every '
            f'rank is there already'
        )
    mesh, sharded = (
        tensor.device_mesh,
        [dim for dim, place in enumerate(tensor.placements) if place == Shard(0)],
    )
    if len(sharded) > 1 or any(
        place != Shard(0) and not isinstance(place, Replicate) for place in tensor.placements
    ):
        raise ValueError(
            f'fsccl_torch.redistribute: a tensor with the placements {tensor.placements}: it carries '
            f'Shard(0) over one '
            'dimension of the mesh, and Replicate() over others'
        )
    place = mesh.get_coordinate()
    if not sharded:
        return 1, 0 if place is not None else c.NO_SHARD
    return mesh.size(sharded[0]), place[sharded[0]] if place is not None else c.NO_SHARD
