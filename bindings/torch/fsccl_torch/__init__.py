# SPDX-License-Identifier: Apache-2.0
"""FSCCL as a backend of torch.distributed: `init_process_group("fsccl")`.

torch finds the installed package by its entry point, so a program need not import it. Importing it
registers the backend as well.
"""

import importlib
from typing import Any

import torch.distributed as _dist

__all__ = [
    'AllGather',
    'FscclBackend',
    'FscclError',
    'Owners',
    'ReduceScatter',
    'broadcast_coalesced',
    'export_model',
    'from_launcher',
    'mem_pool',
    'peer_states',
    'publish',
    'redistribute',
    'register',
    'shrink',
    'stats',
    'subscribe',
    'sync_module_states',
    'verify_replicas',
]

if not _dist.is_available():
    raise ImportError(
        'fsccl_torch: this build of torch has no torch.distributed: install one that has.'
    )


from ._capi import FscclError
from .backend import DEVICES, NAME, FscclBackend, create
from .base import BACKEND  # noqa: F401 (first: it refuses a torch that cannot be used)
from .launcher import from_launcher
from .stats import stats

# These are in modules that import FSDP2 and DTensor, which takes a second.
_LATER = {
    'AllGather': 'comms',
    'Owners': 'owners',
    'ReduceScatter': 'comms',
    'broadcast_coalesced': 'state',
    'export_model': 'export',
    'mem_pool': 'pluggable',
    'peer_states': 'survivors',
    'publish': 'publishing',
    'redistribute': 'survivors',
    'shrink': 'survivors',
    'subscribe': 'subscribing',
    'sync_module_states': 'state',
    'verify_replicas': 'state',
}
# These modules are imported when they are used. torchft and xla need packages that may be missing.
_MODULES = ('ddp', 'fsdp2', 'torchft', 'xla')


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f'.{_LATER[name]}', __name__), name)
    if name in _MODULES:
        return importlib.import_module(f'.{name}', __name__)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def register() -> None:
    """Makes the name "fsccl" known to torch.distributed. It may be called any number of times."""
    if NAME.upper() not in _dist.Backend._plugins:
        _dist.Backend.register_backend(NAME, create, extended_api=True, devices=DEVICES)


register()
