# SPDX-License-Identifier: Apache-2.0
# fmt: off
# ruff: noqa
"""The declarations of the headers in include/fsccl for ctypes. Written by
tools/generate_capi.py: change the headers, and run that. The names are those of C without "fsccl_":
fsccl_pool_config_t is PoolConfig, FSCCL_ERR_TIMEOUT is ERR_TIMEOUT. Handles and addresses are plain
integers."""

from __future__ import annotations

import ctypes
from ctypes import (
    c_size_t,
    c_uint64,
)
from typing import Any, ClassVar


class Struct(ctypes.Structure):
    """A struct whose fields are at first what its ..._INIT macro in C says, and zero where that
    says nothing."""

    _initial_: ClassVar[dict[str, Any]] = {}

    def __init__(self, *values: Any, **named: Any) -> None:
        given = {name for name, *_ in type(self)._fields_[: len(values)]}
        first = {name: value for name, value in self._initial_.items() if name not in given}
        super().__init__(*values, **{**first, **named})


class Sized(Struct):
    """A struct that begins with its own size."""

    size: int

    def __init__(self, **named: Any) -> None:
        super().__init__(**{'size': ctypes.sizeof(type(self)), **named})

    def figures(self) -> dict[str, Any]:
        """The fields after the size, by name."""
        return {name: getattr(self, name) for name, *_ in type(self)._fields_[1:]}


class Counters(Sized):
    operations: int
    bytes_read: int
    bytes_written: int
    kernel_copies: int
    sleeps: int
    _fields_ = [
        ('size', c_size_t), ('operations', c_uint64), ('bytes_read', c_uint64),
        ('bytes_written', c_uint64), ('kernel_copies', c_uint64), ('sleeps', c_uint64),
    ]
