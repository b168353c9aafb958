# SPDX-License-Identifier: Apache-2.0
"""Makes the replicas of a module equal, and checks that they are.

All tensors of a list are sent from where they lie, in one operation; nothing is flattened or
copied. A DTensor is sent as its local shard, which each replica gets from the same shard of the
first replica.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Collection, Iterable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

from .backend import NAME
from .base import all_gather_single

_CPU = torch.device('cpu')


def written(tensors: Iterable[torch.Tensor]) -> None:
    """Raises the versions of tensors that FSCCL has written. Torch does so for its own operations:
    autograd then refuses what it saved of them, and units of FSDP2 gather them again."""
    for tensor in tensors:
        if not tensor.is_inference():  # it has no version
            torch.autograd.graph.increment_version(tensor)


def broadcast_coalesced(
    tensors: Iterable[torch.Tensor], src: int = 0, group: dist.ProcessGroup | None = None
) -> None:
    """Copies the tensors of the group's rank `src` to its other ranks, in place. Collective. All
    ranks give lists of the same shapes and types."""
    group = group or dist.group.WORLD
    tensors = [tensor.detach() for tensor in tensors if tensor.numel()]
    if not tensors:
        return
    if dist.get_backend_config(group).find(NAME) < 0:
        raise TypeError(
            f"fsccl_torch.broadcast_coalesced: the group's backend is {dist.get_backend(group)}: "
            f'create it with '
            f"'{NAME}'"
        )
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor, options.asyncOp = src, 0, False
    group.broadcast(tensors, options).wait()
    written(tensors)


def sync_module_states(
    module: torch.nn.Module,
    group: dist.ProcessGroup | None = None,
    *,
    src: int = 0,
    parameters: bool = True,
    buffers: bool = True,
    ignore: Collection[str] = (),
    verify: bool = False,
) -> None:
    """Makes all replicas of `module` equal to replica `src`: its parameters in one operation, and
    then its buffers in another.

    DTensors are sent over the dimensions of their mesh in which they are replicated (with HSDP the
    first). Other tensors are sent over `group`. Without `group` they are sent over the dimensions
    in which the module's DTensors are replicated, or over the world if it has no DTensors. Names in
    `ignore` are left out. With `verify` the replicas are compared afterwards, and RuntimeError is
    raised if they differ."""
    for wanted, named in ((parameters, module.named_parameters), (buffers, module.named_buffers)):
        if wanted:
            for replicas, tensors in _by_replicas(module, named(), group, ignore).items():
                broadcast_coalesced([tensor for _, tensor in tensors], src, replicas)
    if verify:
        different = verify_replicas(
            module, group, parameters=parameters, buffers=buffers, ignore=ignore
        )
        if different:
            raise RuntimeError(
                f'fsccl_torch: replicas differ after their states were synchronised: {different}'
            )


def verify_replicas(
    module: torch.nn.Module,
    group: dist.ProcessGroup | None = None,
    *,
    parameters: bool = True,
    buffers: bool = True,
    ignore: Collection[str] = (),
) -> dict[str, list[int]]:
    """Returns {name: ranks in the replicas' group whose tensor differs from rank 0's}. It is empty
    if all replicas are equal. Compares 128-bit hashes. Collective over the groups that
    sync_module_states() uses."""
    named = [
        *(module.named_parameters() if parameters else ()),
        *(module.named_buffers() if buffers else ()),
    ]
    different = {}
    for replicas, tensors in _by_replicas(module, named, group, ignore).items():
        mine = torch.stack([_digest(tensor) for _, tensor in tensors])
        all_of_them = torch.empty((replicas.size(), *mine.shape), dtype=mine.dtype)
        all_gather_single(all_of_them, mine, group=replicas)
        for index, (name, _) in enumerate(tensors):
            ranks = [
                rank
                for rank in range(replicas.size())
                if not torch.equal(all_of_them[rank, index], all_of_them[0, index])
            ]
            if ranks:
                different[name] = ranks
    return different


def _by_replicas(module, named, group, ignore):
    """Returns {group of replicas: [(name, local tensor)]}, in the module's order."""
    plain = [group] if group else _replica_groups(module) or [dist.group.WORLD]
    lists = {}
    for name, tensor in named:
        if name in ignore:
            continue
        groups = _groups_of(tensor) if isinstance(tensor, DTensor) else plain
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        for replicas in groups:
            lists.setdefault(replicas, []).append((name, local.detach()))
    return lists


def _groups_of(tensor):
    mesh = tensor.device_mesh
    return [
        mesh.get_group(dim)
        for dim, placement in enumerate(tensor.placements)
        if isinstance(placement, Replicate)
    ]


def _replica_groups(module):
    groups = {}
    for tensor in module.parameters():
        if isinstance(tensor, DTensor):
            groups.update(dict.fromkeys(_groups_of(tensor)))
    return list(groups)


def _digest(tensor):
    data = tensor.contiguous().to(_CPU)
    memory = (ctypes.c_char * data.nbytes).from_address(data.data_ptr()) if data.nbytes else b''
    return torch.frombuffer(
        bytearray(hashlib.blake2b(memory, digest_size=16).digest()), dtype=torch.uint8
    )
