# SPDX-License-Identifier: Apache-2.0
"""Finds the package's C libraries. They are in its own folder, or in the folders that
FSCCL_JAX_LIBRARIES lists, separated by colons. They need libfsccl, which is in the same place or in
the package fsccl."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import _header

VARIABLE = 'FSCCL_JAX_LIBRARIES'


def path(name: str) -> Path:
    """Returns the file of that name."""
    if (found := _find(name)) is not None:
        return found
    raise ImportError(
        f'fsccl_jax: {name} is not in {", ".join(map(str, _folders()))}. Install the package with '
        f'`pip install ./bindings/python ./bindings/jax`, which builds and carries it, or let '
        f'{VARIABLE} list the folders of a build tree.'
    )


def load(name: str) -> ctypes.CDLL:
    """Returns the library of that name. A process loads it once."""
    found = path(name)
    try:
        # It is loaded first. A library that is loaded later and needs libfsccl gets this one.
        ctypes.CDLL(str(_libfsccl()))
        return ctypes.CDLL(str(found))
    except OSError as error:
        raise ImportError(
            f'fsccl_jax: cannot load {found}: {error}. Install the package with `pip install '
            f'./bindings/python ./bindings/jax`, which builds it with what it needs, or let '
            f'{VARIABLE} list the folders of a build tree.'
        ) from error


def _folders() -> list[Path]:
    listed = os.environ.get(VARIABLE)
    if not listed:
        return [Path(__file__).parent]
    return [Path(folder) for folder in listed.split(':') if folder]


def _find(name: str) -> Path | None:
    files = (folder / name for folder in _folders())
    return next((file.resolve() for file in files if file.is_file()), None)


def _libfsccl() -> Path:
    if (carried := _find('libfsccl.so.0')) is not None:
        return carried
    try:
        from fsccl import get_library  # pylint: disable=import-outside-toplevel

        return Path(get_library())
    except (ImportError, FileNotFoundError) as error:
        raise ImportError(
            'fsccl_jax: there is no libfsccl: this package carries none, and the package fsccl '
            f'has none ({error}). Install it with `pip install fsccl`, or in a clone with `pip '
            f'install ./bindings/python`, or let {VARIABLE} list a folder that has libfsccl.so.0.'
        ) from error


def read_counters(function: Callable[[Any], int]) -> dict[str, int]:
    """Returns {name: number} from a C function that fills in fsccl_counters_t."""
    counters = _header.Counters()
    if (status := function(ctypes.byref(counters))) != 0:
        raise RuntimeError(f'fsccl_jax: the counters cannot be read: status {status}')
    return counters.figures()
