# SPDX-License-Identifier: Apache-2.0
"""FSCCL under JAX.

use() makes the collectives that XLA inserts run over FSCCL. It works for any program on JAX's CPU
backend with one device a process. Call it before the first import of jax. `python -m fsccl_jax
program.py` does the same for a program that does not call it.

join(mesh) gives FSCCL's own collectives for use inside shard_map, and fsccl_jax.fsdp trains with
them.
"""

import importlib

from .door import counters, use

__version__ = '0.1.0'
__all__ = ['Group', 'counters', 'fsdp', 'group_counters', 'join', 'use']
_LATER = {
    'Group': ('group', 'Group'),
    'join': ('group', 'join'),
    'group_counters': ('group', 'counters'),
    'fsdp': ('fsdp', None),
}


def __getattr__(name):
    """Imports modules that import jax only when they are used, because use() must come before."""
    if name not in _LATER:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    module, member = _LATER[name]
    found = importlib.import_module(f'.{module}', __name__)
    return found if member is None else getattr(found, member)
