# SPDX-License-Identifier: Apache-2.0
"""Functions for what FSDP2 does differently in different versions of torch. In each function the
newest version comes first."""

import functools
import inspect
import sys

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_common as _common
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as _param_group

_NOTHING = torch.empty(0)


def groups_of(state):
    """Returns the FSDPParamGroups of an FSDPState."""
    if hasattr(state, '_fsdp_param_groups'):  # from 2.13 on
        return state._fsdp_param_groups
    return [state._fsdp_param_group] if state._fsdp_param_group else []


@functools.cache
def argument_names(function):
    return tuple(inspect.signature(function).parameters)


def gathered(fsdp, event):
    """Returns the AllGatherResult of a gather into the parameters themselves."""
    return _param_group.AllGatherResult(
        getattr(fsdp, '_all_gather_output', _NOTHING), event, None, [], [], []
    )


def reduced(fsdp, event, stream):
    """Returns the values of foreach_reduce() if `event` on `stream` is the end of the reduction."""
    nothing = getattr(fsdp, '_all_gather_output', _NOTHING)
    if hasattr(fsdp.comm_ctx, '_last_post_reduce_events'):  # from 2.12 on
        return nothing, event, stream, event, None, None, None
    return nothing, event, event, None, None, None


def reduce_dtype(param):
    """Returns the dtype in which the gradients of a parameter are summed, or None if it is the
    dtype in which they come."""
    if hasattr(param, 'unsharded_grad_dtype'):
        return param.unsharded_grad_dtype
    computed = (
        param.orig_dtype
        if _grads_are_cast_by_autograd(param)
        else param.param_dtype or param.orig_dtype
    )
    return param.reduce_dtype or computed


def grad_dtype(param):
    """Returns the dtype of the sharded gradient, or None if it is that of the sum."""
    return getattr(param, 'sharded_grad_dtype', param.orig_dtype)


def divide_factor(fsdp):
    """Returns the number by which sums of gradients are divided, or None for the number of
    ranks."""
    if hasattr(fsdp, 'gradient_divide_factor'):  # from 2.8 on
        return fsdp.gradient_divide_factor
    operator = fsdp.reduce_scatter_reduce_op
    if operator is None:
        return None
    # FSDP2 averages over the replicas separately.
    replicas = fsdp._all_reduce_process_group.size() if fsdp._is_hsdp else 1
    return replicas / operator.__getstate__()[1]


def compiled_autograd():
    """Returns whether backward runs, or will run, compiled."""
    module = sys.modules.get('torch._dynamo.compiled_autograd')
    # Before 2.13 FSDP2 looks for it itself.
    seen_by_fsdp2 = getattr(_common, 'compiled_autograd_enabled', None)
    return (
        bool(seen_by_fsdp2 and seen_by_fsdp2())
        or module is not None
        and bool(module.compiled_autograd_enabled or module.in_compiled_autograd_region)
    )


def take_grad(param):
    """Takes the whole gradient of a parameter away from it, including what was accumulated without
    synchronisation."""
    # Accumulated gradients are in a tensor beside the parameter.
    if not _grads_are_cast_by_autograd(param) and param.unsharded_accumulated_grad is not None:
        param.accumulate_unsharded_grad_if_needed()
        grad, param.unsharded_accumulated_grad = param.unsharded_accumulated_grad, None
        return grad
    leaf = param.unsharded_param
    grad, leaf.grad = leaf.grad, None
    return grad


def _grads_are_cast_by_autograd(param):
    """Returns whether autograd gives a gradient in another dtype than its parameter's (from 2.14
    on)."""
    return not hasattr(param, 'accumulate_unsharded_grad_if_needed')
