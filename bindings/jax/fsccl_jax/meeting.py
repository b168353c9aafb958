# SPDX-License-Identifier: Apache-2.0
"""Carries the unique id by which ranks find each other, from the process that makes it to the
others, through the key-value store of JAX's coordination service."""

import ctypes
import time
from typing import Any

import jax

_FAILED = b'failed: '  # begins what is there instead of an id; an id begins otherwise
_SLICE_MS = 500  # Python hears Ctrl-C between two calls of JAX's client, not in one


def give(client: Any, key: str, data: bytes) -> None:
    """Gives the id to the processes that take it."""
    client.key_value_set_bytes(key, data)


def give_up(client: Any, key: str, reason: str) -> None:
    """Lets the processes that take the id fail at once, for the reason given."""
    client.key_value_set_bytes(key, _FAILED + reason.encode())


def take(client: Any, key: str, process: int, library: ctypes.CDLL) -> bytes:
    """Returns the id that `process` gives. It waits at most FSCCL_TIMEOUT_MS, as the library itself
    does."""
    limit_ms = _timeout_ms(library)
    until = time.monotonic() + limit_ms / 1000
    while True:
        left_ms = int(1000 * (until - time.monotonic()))
        try:
            given = client.blocking_key_value_get_bytes(key, max(1, min(_SLICE_MS, left_ms)))
            break
        except jax.errors.JaxRuntimeError as error:
            if 'DEADLINE_EXCEEDED' not in str(error):
                raise
            if left_ms <= _SLICE_MS:
                raise RuntimeError(
                    f'process {process}, which makes the id by which the ranks find each other, '
                    f'has not come within {limit_ms} ms (FSCCL_TIMEOUT_MS)'
                ) from None
    if given.startswith(_FAILED):
        reason = given[len(_FAILED) :].decode(errors='replace')
        raise RuntimeError(f'process {process} has failed: {reason}')
    return given


def _timeout_ms(library):
    text = ctypes.create_string_buffer(32)
    status = library.fsccl_config_get(b'FSCCL_TIMEOUT_MS', text, ctypes.c_size_t(len(text)))
    return int(text.value) if status == 0 else 600_000
