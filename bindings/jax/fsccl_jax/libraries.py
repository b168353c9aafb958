# SPDX-License-Identifier: Apache-2.0
"""Where the package's C libraries are: in its own folder, or in those that FSCCL_JAX_LIBRARIES
lists, separated by colons."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import _header

VARIABLE = 'FSCCL_JAX_LIBRARIES'


def path(name: str) -> Path:
    """The file of that name."""
    listed = os.environ.get(VARIABLE)
    folders = (
        [Path(folder) for folder in listed.split(':') if folder]
        if listed
        else [Path(__file__).parent]
    )
    for folder in folders:
        if (folder / name).is_file():
            return (folder / name).resolve()
    raise ImportError(
        f'fsccl_jax: {name} is not in {", ".join(map(str, folders))}. Install the package with '
        f'`pip install '
        f'./bindings/jax`, which builds and carries it, or let {VARIABLE} list the folders of a '
        f'build tree.'
    )


def load(name: str) -> ctypes.CDLL:
    """The library of that name; it is loaded once, whoever loads it."""
    found = path(name)
    try:
        return ctypes.CDLL(str(found))
    except OSError as error:
        raise ImportError(
            f'fsccl_jax: cannot load {found}: {error}. Install the package with `pip install '
            f'./bindings/jax`, which '
            f'builds it with what it needs, or let {VARIABLE} list the folders of a build tree.'
        ) from error


def read_counters(function: Callable[[Any], int]) -> dict[str, int]:
    """{name: number} from a C function that fills fsccl_counters_t in."""
    counters = _header.Counters()
    if (status := function(ctypes.byref(counters))) != 0:
        raise RuntimeError(f'fsccl_jax: the counters cannot be read: status {status}')
    return counters.figures()
