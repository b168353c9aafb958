# SPDX-License-Identifier: Apache-2.0
"""The C API of libfsccl for Python. The library is found and its version compared, functions get
their signatures from _header.py, and a negative status becomes an FscclError. This module needs
torch for the exception's base class only.

Functions are called as fsccl.h declares them: `check(lib.fsccl_barrier(comm, None, None))`. Each
call gives up the interpreter's lock, so that other Python threads run while one waits. Handles and
addresses are plain integers.
"""

import ctypes
import datetime
from pathlib import Path

from torch.distributed import DistBackendError

from . import _header, _library
from ._header import *  # noqa: F403

# The callback of fsccl_work_callback().
WORK_DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)

# These are the major and minor version of the header that the declarations follow.
_MADE_FOR = (_header.VERSION_MAJOR, _header.VERSION_MINOR)


def _not_ours(found: Path, why: object) -> ImportError:
    return ImportError(
        f'fsccl_torch: {found} is no libfsccl of version {_MADE_FOR[0]}.{_MADE_FOR[1]}: {why}. '
        'Install a library and a package of the same version: '
        '`pip install --upgrade fsccl fsccl-torch`.'
    )


def _load() -> tuple[Path, ctypes.CDLL, int]:
    found, library = _library.load()
    number = ctypes.c_int()
    try:
        # This comes first, because a library of another version may lack any other function.
        library.fsccl_version(ctypes.byref(number))
    except AttributeError as error:
        raise _not_ours(found, error) from error
    theirs = divmod(number.value // 100, 100)
    # Before 1.0 a minor version may change the API; from 1.0 on it only grows within a major
    # version.
    if (
        theirs[0] != _MADE_FOR[0]
        or theirs[1] < _MADE_FOR[1]
        or (_MADE_FOR[0] == 0 and theirs[1] != _MADE_FOR[1])
    ):
        raise ImportError(
            f'fsccl_torch: {found} is FSCCL {theirs[0]}.{theirs[1]}, this package is made for '
            f'{_MADE_FOR[0]}.{_MADE_FOR[1]}. Install a library and a package of the same version: '
            '`pip install --upgrade fsccl fsccl-torch`.'
        )
    try:
        _header.declare(library)
    except AttributeError as error:
        raise _not_ours(found, error) from error
    return found, library, number.value


class FscclError(DistBackendError):
    """A call of FSCCL failed. The text says what happened and what to do. `code` is the
    fsccl_status_t, and `peer` the other rank that is concerned. Where they are not known, `rank`
    and `peer` are -1 and `sequence` is 0."""

    def __init__(
        self,
        message: str,
        code: int = 0,
        rank: int = -1,
        peer: int = -1,
        sequence: int = 0,
        operation: str = '',
    ) -> None:
        super().__init__(message)
        self.code, self.rank, self.peer, self.sequence, self.operation = (
            code,
            rank,
            peer,
            sequence,
            operation,
        )


_path, lib, library_version = _load()


def path() -> Path:
    """Returns the file of the libfsccl that this process uses, for code that loads it by name."""
    return _path


def error(status: int) -> FscclError:
    """Returns the FscclError for a negative status that the last call of this thread returned."""
    info = _header.ErrorInfo()
    lib.fsccl_last_error(ctypes.byref(info))
    name = lib.fsccl_status_string(status).decode()
    if info.code != status:
        return FscclError(name, status)
    operation, text = (
        (info.operation or b'').decode(errors='replace'),
        (info.text or b'').decode(errors='replace'),
    )
    rank = f'rank {info.rank}: ' if info.rank >= 0 else ''
    # There is no operation if the error is a death that no call has met yet.
    call = f'{operation}: ' if operation else ''
    return FscclError(
        f'{rank}{call}{text} [{name}]',
        status,
        info.rank,
        info.peer,
        info.sequence,
        operation,
    )


def check(status: int) -> int:
    """Returns the status, or raises FscclError if it is an error."""
    if status < 0:
        raise error(status)
    return status


def milliseconds(timeout: datetime.timedelta | None) -> int:
    """Returns a limit as the library's functions take it. 0 says that there is none, so a shorter
    limit than 1 ms becomes 1 ms."""
    return max(1, int(timeout.total_seconds() * 1000)) if timeout else 0
