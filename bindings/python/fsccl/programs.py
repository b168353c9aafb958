# SPDX-License-Identifier: Apache-2.0
"""The commands of the package. Each becomes the program of its name, so that signals and the exit
status are the program's own."""

import os
import sys

from . import _PREFIX, _there


def _run(name: str) -> None:
    program = _there(_PREFIX / 'bin' / name)
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(
            f'{name}: {program} cannot be run: {error}. The package fsccl is made for Linux with '
            f'glibc, for one kind of '
            'processor: install the wheel for this machine, or build it here with `pip install '
            './bindings/python`.'
        )


def fsccl_info() -> None:
    _run('fsccl-info')


def fsccl_perf() -> None:
    _run('fsccl-perf')


def fsccl_trace() -> None:
    _run('fsccl-trace')
