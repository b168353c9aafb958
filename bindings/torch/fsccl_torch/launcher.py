# SPDX-License-Identifier: Apache-2.0
"""Translates what mpirun, mpiexec, prterun and srun tell a process to the variables that
torch.distributed and the libraries on top of it read."""

import ctypes
import os

from . import _capi as c


def from_launcher() -> tuple[int, int]:
    """Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT to what the
    launcher of this process says, so that init_process_group("fsccl") finds them. A variable that
    is set already is left as it is, so nothing changes under torchrun, which sets them itself. Call
    it before init_process_group() or init_device_mesh(). Returns (rank, world size).

    MASTER_PORT is a number from 10000 to 29999 that is computed from the job's name, so it is the
    same on all ranks. If another program uses this port on rank 0's host, set MASTER_PORT
    yourself."""
    info = c.LaunchInfo()
    c.check(c.lib.fsccl_launcher(ctypes.byref(info)))
    if not info.launcher:
        raise c.FscclError(
            'fsccl_torch.from_launcher: no launcher has started this process: run it with '
            'torchrun, mpirun, '
            'mpiexec, prterun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT',
            c.ERR_CONFIG,
        )
    found = {
        'RANK': info.rank,
        'WORLD_SIZE': info.ranks,
        'LOCAL_RANK': info.local_rank if info.local_rank >= 0 else None,
        'LOCAL_WORLD_SIZE': info.local_ranks or None,
        'MASTER_ADDR': info.master_address.decode() if info.master_address else None,
        'MASTER_PORT': info.master_port or None,
    }
    for name, value in found.items():
        if value is not None and not os.environ.get(name):
            os.environ[name] = str(value)
    return info.rank, info.ranks
