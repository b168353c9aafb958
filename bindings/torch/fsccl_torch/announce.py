# SPDX-License-Identifier: Apache-2.0
"""Warnings in the log that something which was asked for is not used, each once in a process."""

import logging

_log = logging.getLogger('fsccl_torch')
_announced: set[object] = set()


def announce(text: str, reason: object = None) -> None:
    """Logs a warning, once for each reason (by default the text)."""
    if (reason or text) not in _announced:
        _announced.add(reason or text)
        _log.warning('fsccl_torch: %s', text)
