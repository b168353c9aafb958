# SPDX-License-Identifier: Apache-2.0
"""FSCCL under JAX.

use() makes the collectives that XLA inserts run over FSCCL, in any program for JAX's CPU backend with one device a process. It
comes before the first import of jax. `python -m fsccl_jax program.py` does the same for a program that does not call it.
"""

from .door import counters, use

__version__ = "0.1.0"
__all__ = ["counters", "use"]
