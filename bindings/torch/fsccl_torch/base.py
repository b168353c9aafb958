# SPDX-License-Identifier: Apache-2.0
"""The class of torch that the backend derives from, which depends on the version of torch.

From torch 2.14 on, c10d::Backend can be subclassed in Python (BACKEND). The backend is then one of
the backends of a process group of torch's own. Older versions let Python subclass
c10d::ProcessGroup alone. The backend is then the process group itself: torch asks it for what it
asks a group, under the names that a group has. Adapter translates these calls to those of a
backend.
"""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import Backend

from .streams import device_of

OLDEST = (2, 7)  # versions of torch that are tested
NEWEST = (2, 15)


def _backend_can_be_subclassed():
    """Returns whether C++ calls the methods of a Python subclass of c10d::Backend."""

    class Probe(Backend):
        def getBackendName(self):
            return 'probe'

    try:
        return Probe(0, 1).name() == 'probe'
    except (TypeError, RuntimeError):
        return False


def _group_can_be_subclassed():
    class Probe(dist.ProcessGroup):
        def getBackendName(self):
            return 'probe'

    try:
        return Probe(0, 1).name() == 'probe'
    except (TypeError, RuntimeError):
        return False


def check_version(version):
    """Refuses a torch that is too old, and says it where one is newer than those that are known
    here."""
    numbers = tuple(int(number) for number in version.split('+')[0].split('.')[:2])
    if numbers < OLDEST:
        raise ImportError(
            f'fsccl_torch: torch {version} is too old: install torch {OLDEST[0]}.{OLDEST[1]} or '
            f'newer.'
        )
    if numbers > NEWEST:
        warnings.warn(
            f'fsccl_torch: torch {version} is newer than {NEWEST[0]}.{NEWEST[1]}, the newest that '
            f'this fsccl_torch was '
            'tested with: where something fails, install a newer fsccl_torch or an older torch.',
            stacklevel=2,
        )


check_version(torch.__version__)
BACKEND = _backend_can_be_subclassed()
if not BACKEND and not _group_can_be_subclassed():
    raise ImportError(
        f'fsccl_torch: torch {torch.__version__} lets Python subclass neither c10d::Backend nor '
        f'c10d::ProcessGroup: '
        f'install a release of torch from {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}.'
    )


# Their names since torch 2.13.
all_gather_single = getattr(dist, 'all_gather_single', None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, 'reduce_scatter_single', None) or dist.reduce_scatter_tensor


def blocking(opts):
    """Returns whether the operation is to be over when the call returns. Some options of older
    versions do not say it: then torch waits."""
    return not getattr(opts, 'asyncOp', True)


class Group(dist.ProcessGroup):
    """Functions that torch asks of a process group beside its communication, for a group that is
    its own backend."""

    bound_device_id = None

    def __init__(self, rank, size):
        super().__init__(rank, size)
        self._group_name, self._group_desc = '', 'undefined'
        self._names, self._groups = (
            None,
            {},
        )  # the other backends, and the groups on them, by type of device

    def elsewhere(self, device):
        """The group that carries tensors on `device` where this one does not: torch makes none of
        the other backends of a name like "cpu:fsccl,cuda:nccl" when one of them is a group. So it
        is made here, at first use, in a group of its own."""
        if self._names is None:
            known = self._map()
            if known is None:
                return None
            self._names = {
                kind: name for kind, name in known.items() if name != self.getBackendName()
            }
        name = self._names.get(device.type) if device is not None else None
        if name is None:
            return None
        if device.type not in self._groups:
            self._groups[device.type] = dist.new_group(
                self._options.global_ranks_in_group,
                timeout=self._options._timeout,
                backend=f'{device.type}:{name}',
                use_local_synchronization=True,
            )
        return self._groups[device.type]

    def _map(self):
        """{type of device: backend} as the program named them, or None for a group that torch does
        not know."""
        known = dist.distributed_c10d._world.pg_backend_config.get(self)
        return dict(pair.split(':') for pair in str(known).lower().split(',')) if known else None

    def _get_backend(self, device):
        other = self.elsewhere(torch.device(device))
        return other._get_backend(device) if other else self

    @property
    def _device_types(self):
        return [torch.device(kind) for kind in self._map() or ('cpu', 'cuda')]

    def _set_default_backend(self, kind):
        """It is this one."""

    def _get_backend_name(self):
        return self.getBackendName()

    # torch asks the C++ half of the group for its name. It asks these in turn.
    def getGroupName(self):
        return self._group_name

    def setGroupName(self, name):
        self._group_name = name

    def getGroupDesc(self):
        return self._group_desc

    def setGroupDesc(self, text):
        self._group_desc = text

    def get_group_store(self):
        return self._store

    def eager_connect_single_device(self, device):
        """The group is connected when it is made."""

    def _start_coalescing(self, device):
        self.start_coalescing()

    def _end_coalescing(self, device):
        return self.end_coalescing()


Base: Any = Backend if BACKEND else Group


class _NamedOptions(Backend.Options):
    """The options of a group. Torch's own have no names and ranks before 2.8."""


Options: Any = Backend.Options if hasattr(Backend.Options, 'group_name') else _NamedOptions


class Adapter:
    """The calls of a group that differ from those of a backend, before a class that has the
    latter."""

    def split_group(self, new_ranks, timeout=None, opts=None, group_name=None, group_desc=None):
        """For torch.distributed.split_group(): the part of this group that `new_ranks` are, of this
        group's ranks."""
        options = Options(self.getBackendName(), timeout=timeout or self._options._timeout)
        options.group_name = group_name or ''
        return self.split(self._store, new_ranks, options)

    @property
    def supports_shrinking(self):
        """torch.distributed.shrink_group() would make a group of torch's own around this one.
        fsccl_torch.shrink() does without."""
        return False

    def monitored_barrier(self, timeout, wait_all_ranks=False):
        options = c10d.BarrierOptions()
        options.timeout = timeout
        super().monitored_barrier(options, wait_all_ranks)

    def shutdown(self):
        for group in self._groups.values():
            if group in dist.distributed_c10d._world.pg_map:
                dist.destroy_process_group(group)
        self._groups.clear()
        super().shutdown()


# The names of a call at a group, the first of them also at a backend; how many operands it has; its
# options; and those fields of the options that may be given alone.
_CALLS = (
    (('broadcast',), 1, c10d.BroadcastOptions, ('rootRank',)),
    (('allreduce',), 1, c10d.AllreduceOptions, ('reduceOp',)),
    (('allreduce_coalesced',), 1, c10d.AllreduceCoalescedOptions, ()),
    (('reduce',), 1, c10d.ReduceOptions, ('rootRank', 'reduceOp')),
    (('allgather',), 2, c10d.AllgatherOptions, ()),
    (('allgather_coalesced',), 2, c10d.AllgatherOptions, ()),
    (('all_gather_single', '_allgather_base'), 2, c10d.AllgatherOptions, ()),
    (
        ('all_gather_single_coalesced', 'allgather_into_tensor_coalesced'),
        2,
        c10d.AllgatherOptions,
        (),
    ),
    (('gather',), 2, c10d.GatherOptions, ('rootRank',)),
    (('scatter',), 2, c10d.ScatterOptions, ('rootRank',)),
    (('reduce_scatter',), 2, c10d.ReduceScatterOptions, ('reduceOp',)),
    (
        ('reduce_scatter_single', '_reduce_scatter_base'),
        2,
        c10d.ReduceScatterOptions,
        ('reduceOp',),
    ),
    (
        ('reduce_scatter_single_coalesced', 'reduce_scatter_tensor_coalesced'),
        2,
        c10d.ReduceScatterOptions,
        ('reduceOp',),
    ),
    (('all_to_all_single', 'alltoall_base'), 4, c10d.AllToAllOptions, ()),
    (('alltoall',), 2, c10d.AllToAllOptions, ()),
    (('barrier',), 0, c10d.BarrierOptions, ()),
    (('send',), 1, int, ()),
    (('recv',), 1, int, ()),
    (('recv_anysource',), 1, int, ()),
)


def _call(name, carried, operands, options, fields):
    """The call `name` of a group, which is `carried` of a backend. After the operands it takes
    `options`, or what `fields` of them are to be, or nothing."""

    def call(self, *given, **named):
        given += tuple(named.values())
        other = self.elsewhere(device_of(given[:operands])) if self._names != {} else None
        if other:
            return getattr(other, name)(*given)
        ours, rest = getattr(super(Adapter, self), carried), given[operands:]
        if rest and isinstance(rest[0], options):
            return ours(*given)
        opts = options()
        for field, value in zip(fields, rest):
            setattr(opts, field, value)
        return ours(*given[:operands], opts)

    return call


for _names, *_how in _CALLS:
    for _name in _names:
        setattr(Adapter, _name, _call(_name, _names[0], *_how))


def adapted(backend):
    """The class that torch is given: one of a backend itself where torch takes a backend."""
    if BACKEND:
        return backend
    return type(
        backend.__name__,
        (Adapter, backend),
        {'__doc__': backend.__doc__, '__module__': backend.__module__},
    )
