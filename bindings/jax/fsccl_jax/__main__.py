# SPDX-License-Identifier: Apache-2.0
"""Runs a program for JAX over FSCCL, unchanged.

usage: python -m fsccl_jax PROGRAM [argument ...]
       python -m fsccl_jax -m MODULE [argument ...]
"""

import runpy
import sys
from pathlib import Path

from .door import use


def main():
    arguments = sys.argv[1:]
    if arguments[:1] in (['-h'], ['--help']):
        print(__doc__)
        return
    if not arguments or arguments == ['-m']:
        sys.exit(__doc__)
    use()
    is_module = arguments[0] == '-m'
    if not sys.flags.safe_path:  # otherwise Python adds no folder, and the first is another
        sys.path[0] = '' if is_module else str(Path(arguments[0]).resolve().parent)
    if is_module:
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name='__main__', alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name='__main__')


if __name__ == '__main__':
    main()
