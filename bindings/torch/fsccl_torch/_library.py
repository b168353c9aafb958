# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the libfsccl of this process. A process uses one only: two would each keep their
own communicators and memory."""

import ctypes
import os
import platform
from pathlib import Path

SETTING = 'FSCCL_TORCH_LIBRARY'


def path() -> Path:
    """Returns the library that FSCCL_TORCH_LIBRARY names, or else the one that this package
    carries, or else the one of the package fsccl."""
    chosen = os.environ.get(SETTING)
    if chosen:
        return Path(chosen)
    carried = Path(__file__).parent / 'libfsccl.so'
    if carried.exists():
        return carried
    try:
        from fsccl import get_library
    except ImportError as error:
        raise ImportError(
            'fsccl_torch: there is no libfsccl: this package carries none, and the package fsccl '
            'is not installed '
            f'({error}). Install it with `pip install fsccl`, or in a clone with `pip install '
            f'./bindings/python`, or '
            f'let {SETTING} name a libfsccl.so.'
        ) from error
    try:
        return Path(get_library())
    except FileNotFoundError as error:
        raise ImportError(f'fsccl_torch: {error}') from error


def _mapped() -> list[str]:
    """Returns the files mapped into this process that are called libfsccl.so, with or without a
    version."""
    with open('/proc/self/maps', encoding='utf-8', errors='surrogateescape') as maps:
        words = [line.rstrip('\n').split(maxsplit=5) for line in maps]
    return sorted(
        {
            line[5]
            for line in words
            if len(line) == 6 and Path(line[5]).name.startswith('libfsccl.so')
        }
    )


def _refuse_another(found: Path) -> None:
    """Raises ImportError if loading `found` would load a second libfsccl. A name without a folder
    is left to the dynamic linker, which takes the library that is loaded already."""
    for other in _mapped():
        if found.exists() and not (os.path.exists(other) and os.path.samefile(other, found)):
            raise ImportError(
                f'fsccl_torch: this process has loaded {other} already, and would load {found} '
                f'beside it; each would '
                f'keep its own communicators and memory. Let both use one: set {SETTING}={other}, '
                f'or take {other} '
                'out of LD_LIBRARY_PATH, LD_PRELOAD or whatever loads it.'
            )


def _system() -> str:
    """Returns advice for a system that the wheels are not made for, otherwise ''."""
    if platform.libc_ver()[0] == 'glibc':
        return ''
    return (
        " This Python's C library is not glibc (on Alpine Linux it is musl); the wheels of fsccl "
        'and of torch are made for '
        "glibc: use an image with glibc, such as Debian's, or build FSCCL and torch on this system."
    )


def load() -> tuple[Path, ctypes.CDLL]:
    """Returns the library's path and the library."""
    found = path()
    _refuse_another(found)
    try:
        return found, ctypes.CDLL(str(found))
    except OSError as error:
        raise ImportError(
            f'fsccl_torch: cannot load libfsccl from {found}: {error}.{_system()} Install the '
            f'library again with '
            '`pip install --force-reinstall --no-deps fsccl`, or in a clone with `pip install '
            './bindings/python`, '
            f'or let {SETTING} name another libfsccl.so.'
        ) from error
