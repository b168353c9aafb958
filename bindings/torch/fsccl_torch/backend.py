# SPDX-License-Identifier: Apache-2.0
"""The c10d backend: a process group of torch has one FscclBackend, which has one communicator of
FSCCL. Its collectives are in moving.py and reducing.py. This module has its messages, the life of a
group, and the other functions that torch asks of a backend.

torch finds methods by name and calls them from C++ (its trampoline of c10d::Backend), and wraps
what they return (held.py). In older versions of torch the backend is itself the process group
(base.py).
"""

import ctypes
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

from . import _capi as c
from . import held, streams
from .base import Base, Options, adapted
from .communicator import connect
from .messages import Messages
from .monitored import MonitoredBarrier
from .moving import Moving
from .reducing import Reducing
from .stats import count
from .untraced import untraced

NAME = 'fsccl'
DEVICES = ['cpu', 'cuda']
_ERRORS = {
    c.OK: ErrorType.SUCCESS,
    c.IN_PROGRESS: ErrorType.SUCCESS,
    c.ERR_TIMEOUT: ErrorType.TIMEOUT,
    c.ERR_PEER_DEAD: ErrorType.REMOTE_ERROR,
}

# These are the backends before their shutdown(), in the order in which they were made. torch's
# debug wrapper keeps only the C++ half of a backend, so this reference keeps the Python half alive.
_open: dict[Any, None] = {}


@adapted
@untraced
class FscclBackend(Moving, Reducing, Base):
    def __init__(self, comm, store, options):
        super().__init__(comm.rank, comm.size)
        self._comm, self._rank, self._size, self._options = comm, comm.rank, comm.size, options
        self._store, self._survivors, self._messages = store, None, Messages(comm)
        self._monitored_barrier = MonitoredBarrier(store, comm.rank, comm.size, comm.who())
        _open[self] = None
        held.install()

    # ----------------------------------------------------------------------------------------------
    # messages ----

    def send(self, tensors, peer, tag=0):
        return self._message('send', c.lib.fsccl_send, tensors, self._source, peer, tag)

    def recv(self, tensors, peer, tag=0):
        return self._message('recv', c.lib.fsccl_recv, tensors, self._target, peer, tag)

    def recv_anysource(self, tensors, tag=0):
        return self._message('recv', c.lib.fsccl_recv, tensors, self._target, None, tag)

    def _message(self, call, function, tensors, operand, peer, tag):
        works = []
        for tensor in tensors:
            buffer = operand(call, tensor)
            code, per = self._moved(call, tensor.dtype)
            count(call, buffer)
            finish = self._back(buffer, tensor) if call == 'recv' else None
            place = buffer.data_ptr(), buffer.numel() * per, code
            if streams.on_gpu(buffer.device):
                if peer is None:
                    self._refuse(
                        call,
                        'src is None, and a rank receives memory of a GPU from a rank that is '
                        'named: name src',
                        NotImplementedError,
                    )
                with self._messages.exclusively():
                    work = self._comm.submit(
                        call,
                        function,
                        (*place, peer, tag),
                        buffer,
                        [tensor],
                        finish,
                        in_order=False,
                    )
            elif call == 'send':
                work = self._messages.send(peer, tag, place, buffer, [tensor])
            else:
                work = self._messages.receive(peer, tag, place, buffer, [tensor], finish)
            works.append(work)
        if self._comm.coalesced is not None:
            self._comm.coalesced += works
        return self._comm.together(works)

    def start_coalescing(self):
        """Starts a sequence of operations that are only submitted. end_coalescing() returns one
        work for all."""
        self._comm.coalesced = []

    def end_coalescing(self):
        works, self._comm.coalesced = self._comm.coalesced or [], None
        return self._comm.together(works) if works else self._comm.done('coalesced', [])

    def monitored_barrier(self, opts, wait_all_ranks=False):
        count('barrier')
        self._monitored_barrier(opts.timeout, wait_all_ranks)

    # ----------------------------------------------------------------------------------------------
    # life and death ----

    def split(self, store, ranks, opts):
        """Returns the backend of a part of this group. The part uses the connections of the group.
        Every rank of the group calls this. One that is in no part calls it with the ranks of
        another part, and gets an error: it would have to return None, which torch's trampoline does
        not survive."""
        member = self._rank in ranks
        timeout, parents = (
            opts._timeout,
            self._options.global_ranks_in_group or list(range(self._size)),
        )
        world = [parents[rank] for rank in ranks]
        name = opts.group_name or f'{self._options.group_name}/{min(ranks)}'
        comm = self._comm.split(
            min(ranks) if member else None,
            ranks.index(self._rank) if member else 0,
            timeout,
            name,
            world,
        )
        if not member:
            self._refuse(
                'split_group',
                'this rank is in no part, which torch cannot express to a backend in Python (its '
                'parts are '
                'made): put it into a part of its own, or use new_group',
                NotImplementedError,
            )
        return FscclBackend(comm, store, _options(timeout, name, world))

    def _rank_in_world(self):
        return self._comm.ranks[self._rank] if self._comm.ranks else self._rank

    def perform_nocolor_split(self, device):
        """Does nothing, because a group is made without the ranks that are not in it."""

    def survive(self):
        """Returns the ranks of this group that its survivors agree to be gone; shrink() then goes
        on without them. Collective over the survivors. Operations on all groups of this rank end
        with an error, because in those groups, too, ranks may wait for a dead one."""
        for other in list(_open):
            if other._rank_in_world() == self._rank_in_world():
                other._comm.abort()
        comm, left = self._comm.survivors(self._options._timeout)
        self._survivors = comm, sorted(set(range(self._size)) - set(left))
        return self._survivors[1]

    def shrink(self, ranks_to_exclude, shrink_flags=0, opts_override=None):
        """Returns the backend of the ranks that are not excluded, for
        torch.distributed.shrink_group(). If this group has failed, or is to be aborted, the
        remaining ranks must be exactly those that live."""
        options = opts_override or self._options
        ranks = [rank for rank in range(self._size) if rank not in ranks_to_exclude]
        if self._survivors is None and not shrink_flags and self._comm.state() == c.OK:
            comm = self._comm.subset(
                options._timeout, f'{self._comm.name} without {ranks_to_exclude}', ranks
            )
        else:
            if self._survivors is None:
                self.survive()
            (comm, lost), self._survivors = self._survivors, None
            if lost != list(ranks_to_exclude):
                self._refuse(
                    'shrink_group',
                    f'ranks {lost} are gone, and {ranks_to_exclude} were to be excluded: exclude '
                    f'the '
                    'former, or call fsccl_torch.shrink(), which finds out',
                )
        return FscclBackend(
            comm, self._store, _options(options._timeout, comm.name, list(range(len(ranks))))
        )

    def set_timeout(self, timeout):
        milliseconds = c.milliseconds(timeout)
        if milliseconds > self._comm.timeout_ms:
            warnings.warn(
                f'{self._comm.who()}: set_timeout: waits end after {self._comm.timeout_ms} ms, the '
                f'timeout that the '
                f'group was made with, at the latest; {milliseconds} ms is longer. Give it to '
                f'init_process_group or '
                'new_group.',
                stacklevel=2,
            )
        self._comm.limit_ms = milliseconds
        self._options._timeout = timeout

    def abort(self):
        self._comm.abort()

    def shutdown(self):
        self._messages.close()
        self._comm.close()
        _open.pop(self, None)

    def get_error(self):
        return _ERRORS.get(self._comm.state(), ErrorType.COMM_ERROR)

    # ----------------------------------------------------------------------------------------------
    # memory ----

    def supports_tensor_alloc(self, device):
        return isinstance(device, int) or torch.device(device).type in DEVICES

    def allocate_tensor(self, size, *, dtype, device='cpu'):
        """Returns a tensor in the group's pool on `device`. Collectives are fastest on such
        tensors. The first call for a device in a group is collective."""
        device = torch.device(device)
        if device.type not in DEVICES:
            self._refuse(
                'allocate_tensor', f'{device}: FSCCL carries memory of the host and of CUDA devices'
            )
        return self._comm.pool_of(streams.with_index(device)).allocate(size, dtype)

    def memory_stats(self):
        return self._comm.pool.stats()

    # ----------------------------------------------------------------------------------------------
    # about ----

    def getBackendName(self):
        return NAME

    @property
    def options(self):
        return self._options

    @property
    def supports_splitting(self):
        return True

    @property
    def supports_shrinking(self):
        return True

    @property
    def supports_coalescing(self):
        return True

    @property
    def communicator(self):
        """Returns the fsccl_comm_t as a number, for calls of the C API on this group's
        communicator."""
        return self._comm.handle

    def counters(self):
        """Returns what this rank has done on the communicator so far (fsccl_comm_counters())."""
        found = c.Counters()
        c.check(c.lib.fsccl_comm_counters(self._comm.handle, ctypes.byref(found)))
        return found.figures()

    def _get_sequence_number_for_group(self):
        return self._comm.sequence

    def _set_sequence_number_for_group(self):
        """Does nothing: sequence numbers begin with zero."""


def _options(timeout, name, ranks):
    options = Options(NAME, timeout=timeout)
    options.group_name, options.global_ranks_in_group = name, ranks
    return options


def _world():
    """Returns the communicator of the default group, or None if the default group is not one of
    FSCCL. It has all ranks, so other groups can be made from it. If it has failed, all ranks get
    that error when they make such a group."""
    if not dist.is_initialized():
        return None
    name, rank = dist.group.WORLD.group_name, dist.get_rank()
    found = (
        backend._comm
        for backend in reversed(list(_open))
        if backend._options.group_name == name and backend._rank == rank
    )
    # A group that shrink() made gets its name only after its backend was made, and is found by its
    # device.
    comm = next(found, None) or getattr(
        dist.group.WORLD._get_backend(torch.device('cpu')), '_comm', None
    )
    return comm if comm and not comm.closing else None


handed_over: list[Any] = []  # holds a communicator from which the next group is to be made


def create(given, backend_options):
    """Makes the backend of a new group. torch calls this on the members of the group. If there is a
    default group of FSCCL, the members meet through its connections."""
    ranks = list(given.global_ranks_in_group) or list(range(given.group_size))
    timeout, world = given.timeout, _world()
    if not dist.is_initialized():
        # torch has dropped the failed ones when it aborted all groups.
        for backend in [one for one in _open if one._comm.state() < 0]:
            del _open[backend]
    if handed_over:
        comm = handed_over.pop()
    elif world:
        comm = world.subset(timeout, given.group_id, ranks)
    else:
        comm = connect(
            given.store, given.group_rank, given.group_size, timeout, given.group_id, ranks
        )
    return FscclBackend(comm, given.store, _options(timeout, given.group_id, ranks))
