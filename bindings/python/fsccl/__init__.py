# SPDX-License-Identifier: Apache-2.0
"""Where FSCCL is: its library, its headers, and the prefix of both. Nothing is loaded by importing
this."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version
from pathlib import Path as _Path

__all__ = ['get_include', 'get_library', 'get_prefix']

_PREFIX = _Path(__file__).resolve().parent

try:
    __version__ = _version('fsccl')
except PackageNotFoundError:  # a clone's folder on the path, not an installed package
    __version__ = 'unknown'


def _there(path: _Path) -> str:
    if not path.exists():
        raise FileNotFoundError(
            f'fsccl: {path} is missing: the package {_PREFIX} is not complete. Install it again '
            f'with '
            '`pip install --force-reinstall --no-deps fsccl`, or in a clone with '
            '`pip install ./bindings/python`.'
        )
    return str(path)


def get_prefix() -> str:
    """The folder with bin, lib and include."""
    return str(_PREFIX)


def get_library() -> str:
    """The path of libfsccl.so.0. A process loads one FSCCL, this one, whoever asks for it."""
    return _there(_PREFIX / 'lib/libfsccl.so.0')


def get_include() -> str:
    """The folder that `#include <fsccl/fsccl.h>` is found in."""
    return _there(_PREFIX / 'include/fsccl/fsccl.h')[: -len('/fsccl/fsccl.h')]
