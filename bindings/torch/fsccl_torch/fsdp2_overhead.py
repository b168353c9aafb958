# SPDX-License-Identifier: Apache-2.0
"""Removes from FSDP2's hooks what takes time and has no effect: labels for a profiler that is not
running, the pause of a type checker that is not installed, and a wrapper against torch.compile that
is made anew at each call. Together they take a third of the hooks' processor time."""

import contextlib
import types

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_common as _common
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as _param_group
from torch.distributed.fsdp._fully_shard import _fsdp_state as _state

_NOTHING = contextlib.nullcontext()


def _label(name, *arguments):
    if torch.autograd._profiler_enabled():
        return torch.profiler.record_function(name, *arguments)
    return _NOTHING


def _no_type_check():
    return _NOTHING


def replace_names():
    """Puts cheaper functions in place of those that FSDP2's modules know by these names."""
    if getattr(_param_group, 'record_function', None) is torch.profiler.record_function:
        _param_group.record_function = _label
    available = getattr(dist, '_is_spmd_types_available', None)
    if available is not None and not available():
        for module in (_param_group, _state):
            if hasattr(module, '_spmd_no_typecheck'):
                module._spmd_no_typecheck = _no_type_check


def _wraps_anew(function):
    """Returns whether FSDP2 wraps the function against torch.compile at each call."""
    decorator = getattr(_common, '_dynamo_disable', None)
    return decorator is not None and function.__code__ is decorator(lambda: None).__code__


def wrapped_once(owner, name):
    """Returns the method `name` of an object of FSDP2, wrapped against torch.compile once for all
    calls. If FSDP2 does not wrap it, returns the method itself."""
    function, method = getattr(type(owner), name), getattr(owner, name)
    if not _wraps_anew(function):
        return method
    inner = types.MethodType(function.__wrapped__, owner)
    return torch._dynamo.disable(inner, recursive=True, reason='skipping FSDP hooks')


def wrap_hooks_once(state):
    """Wraps the hooks of an FSDPState once: those in its modules, and those that it registers
    later."""
    for name in ('_pre_forward', '_post_forward', '_pre_backward'):
        stock = getattr(state, name)
        if name in vars(state) or not _wraps_anew(getattr(type(state), name)):
            continue
        ours = wrapped_once(state, name)
        setattr(state, name, ours)
        for module in state._modules:
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                hooks.update({key: ours for key, hook in hooks.items() if hook == stock})
