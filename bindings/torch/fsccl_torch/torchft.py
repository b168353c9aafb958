# SPDX-License-Identifier: Apache-2.0
"""torchft over FSCCL: a process group between the replicas of a training that goes on when a
replica dies, and that new replicas can join.

    manager = torchft.Manager(pg=fsccl_torch.torchft.ProcessGroupFsccl(), ...)

torchft's manager has a store for each quorum and calls configure() with it. The replicas of that
quorum then meet in a new communicator. Every replica learns of a death as soon as one sees it, so
an operation with a dead replica ends with an error at once, and not after a timeout.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from .backend import FscclBackend, _options
from .base import BACKEND
from .communicator import connect

try:
    from torchft.process_group import ProcessGroupWrapper
except ImportError as error:
    raise ImportError(
        f'fsccl_torch.torchft needs torchft: install it with `pip install torchft` ({error})'
    ) from error

__all__ = ['ProcessGroupFsccl']


class ProcessGroupFsccl(ProcessGroupWrapper):
    """A process group of torchft whose collectives are FSCCL's. `timeout` limits how long the
    replicas of a quorum take to meet, and how long an operation takes."""

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout)
        self._backend: FscclBackend | None = None

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        name, ranks = f'torchft quorum {self._quorum_id}', list(range(world_size))
        # The replicas have no default group in common, so they meet over the store.
        comm = connect(store, rank, world_size, self._timeout, name, ranks)
        self._backend = FscclBackend(comm, store, _options(self._timeout, name, ranks))
        if not BACKEND:
            return self._backend
        group = dist.ProcessGroup(store, rank, world_size)
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        for device in self._devices():
            group._register_backend(device, dist.ProcessGroup.BackendType.CUSTOM, self._backend)
        return group

    @staticmethod
    def _devices():
        return [torch.device('cpu'), *[torch.device('cuda')] * torch.cuda.is_available()]

    def abort(self, errored: bool = True) -> None:
        """Ends the operations in flight, and destroys the communicator."""
        super().abort(errored)
        self._close()

    def shutdown(self) -> None:
        super().abort(errored=False)
        self._close()

    def _close(self):
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.abort()
            backend.shutdown()

    def getBackendName(self) -> str:
        return 'torchft-fsccl'
