# SPDX-License-Identifier: Apache-2.0
"""Decides which groups of FSDP2 a unit carries. Each function returns the reason why stock FSDP2
has to do something, or None. The answers are the same on all ranks because they depend on the
program alone."""

import functools

from torch.distributed.fsdp._fully_shard import _fsdp_collectives as _collectives
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as _param_group
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

from . import fsdp2_versions as versions
from .backend import DEVICES, FscclBackend
from .dtypes import FLOATS, MOVED


def _own_collective(fsdp, name, kind):
    """Returns the name of a collective that the program has set for a group, or None if it is a
    known one. FSDP2's own collectives and those of fsccl_torch differ only in where buffers lie,
    and a unit needs none of these buffers."""
    own = getattr(fsdp, name, None)
    if own is None:  # before 2.8 FSDP2 takes none
        return None
    return None if type(own) in _known_collectives(kind) else type(own).__name__


@functools.cache
def _known_collectives(kind):
    from . import comms

    stock = (
        getattr(_collectives, prefix + kind, None) for prefix in ('Default', 'ProcessGroupAlloc')
    )
    return {getattr(comms, kind), *stock}


def _replaced(fsdp, name, default):
    """Returns whether a function that a group has for its copies is not FSDP2's own."""
    own = getattr(_param_group, default, None)
    return getattr(fsdp, name, own) is not own


def never_gathers(fsdp):
    """Checks what stays the same for the whole life of an initialized group."""
    params = fsdp.fsdp_params
    if not isinstance(fsdp.mesh_info, FSDPMeshInfo):
        return 'its parameters are replicated, not sharded'
    backend = fsdp._all_gather_process_group._get_backend(fsdp.device)
    if not isinstance(backend, FscclBackend):
        return f'its process group is not on fsccl, but {type(backend).__name__}'
    if fsdp.device.type not in DEVICES:
        return f'it is on {fsdp.device}, and FSCCL carries memory of the host and of CUDA devices'
    if fsdp._use_post_forward_mesh:
        return 'reshard_after_forward is a number'
    if any(param.offload_to_cpu for param in params):
        return 'it is offloaded'
    if any(hasattr(param._sharded_local_tensor, 'fsdp_pre_all_gather') for param in params):
        return 'it has all-gather extensions'
    kinds = {(param.orig_dtype, param.param_dtype or param.orig_dtype) for param in params}
    if len(kinds) != 1:
        return 'its parameters have several dtypes'
    shard, wire = next(iter(kinds))
    trainable = any(param.sharded_param.requires_grad for param in params)
    moved = wire in MOVED and MOVED[wire][1] == 1  # a complex number is two of FSCCL's elements
    if wire not in FLOATS and (trainable or not moved or wire != shard):
        return f'{wire} is not gathered in units'
    return None


def gathers_otherwise(fsdp):
    """Checks what a program may change between two gathers."""
    own = _own_collective(fsdp, '_all_gather_comm', 'AllGather')
    if own:
        return (
            f'it has an all-gather of its own, {own} (set_custom_all_gather, set_symm_mem_for_comm)'
        )
    if _replaced(fsdp, '_all_gather_output_fn', '_default_all_gather_output_fn'):
        return 'it has a copy-out of its own'
    if any(param._sharded_param_data.dtype != param.orig_dtype for param in fsdp.fsdp_params):
        return 'its shards have another dtype than when fully_shard was called (model.to)'
    if any(getattr(param, 'keep_unsharded_storage', False) for param in fsdp.fsdp_params):
        return 'its unsharded parameters keep their memory (set_keep_unsharded_storage)'
    if versions.compiled_autograd():
        return 'compiled autograd is on'
    return None


def reduces_otherwise(fsdp):
    """Checks what a program may change between two reductions. This includes sums over a shard
    group that wait for the replicas (set_requires_all_reduce(False)), and sums that have waited."""
    own = _own_collective(fsdp, '_reduce_scatter_comm', 'ReduceScatter')
    if own:
        return f'it has a reduce-scatter of its own, {own} (set_custom_reduce_scatter, set_symm_mem_for_comm)'
    if _replaced(fsdp, '_prepare_reduce_scatter_inputs', '_default_reduce_scatter_input_fn'):
        return 'it has a copy-in of its own'
    if fsdp._reduce_scatter_process_group is not fsdp.mesh_info.shard_process_group:
        return 'its gradients have a process group of their own (set_separate_reduce_scatter_group)'
    if fsdp._all_reduce_hook is not None:
        return 'it has an all-reduce hook (set_all_reduce_hook)'
    if fsdp._is_hsdp and not (fsdp.all_reduce_grads and fsdp._partial_reduce_output is None):
        return 'its gradients wait for their all-reduce (set_requires_all_reduce)'
    if versions.compiled_autograd():
        return 'compiled autograd is on'
    return None


def dtype_of_sums(fsdp):
    """Returns the dtype in which FSDP2 reduces the group's gradients, as far as it is known before
    the gradients are there."""
    dtypes = {
        versions.reduce_dtype(param)
        for param in fsdp.fsdp_params
        if param.sharded_param.requires_grad
    }
    return dtypes.pop() if len(dtypes) == 1 else None
