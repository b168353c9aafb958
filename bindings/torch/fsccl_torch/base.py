# SPDX-License-Identifier: Apache-2.0
"""The class of torch from which the backend derives. It depends on the version of torch.

From torch 2.14 on, c10d::Backend can be subclassed in Python (BACKEND). The backend is then one of
the backends of a process group of torch's own. In older versions Python can subclass only
c10d::ProcessGroup. The backend is then itself the process group, and torch calls it as it calls a
group, under the names that a group has. Adapter translates these calls to those of a backend.
"""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import Backend

from .streams import device_of
from .untraced import untraced

OLDEST = (2, 7)  # the oldest version of torch that is tested
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
    """Refuses a torch that is too old, and warns of one that is newer than those that are
    tested."""
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


# These are the names since torch 2.13, with the older ones behind them.
all_gather_single = getattr(dist, 'all_gather_single', None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, 'reduce_scatter_single', None) or dist.reduce_scatter_tensor


def blocking(opts):
    """Returns whether the operation must be complete when the call returns. Some options of older
    versions do not say so; the answer is then no, because torch waits itself."""
    return not getattr(opts, 'asyncOp', True)


@untraced
class Group(dist.ProcessGroup):
    """Has the functions that torch asks of a process group beside communication, for a group that
    is its own backend."""

    bound_device_id = None

    def __init__(self, rank, size):
        super().__init__(rank, size)
        self._group_name, self._group_desc = '', 'undefined'
        # These are the other backends, and the groups on them, by type of device.
        self._names, self._groups = None, {}

    def elsewhere(self, device):
        """Returns the group that carries tensors on `device` if this one does not, or None. For a
        name like "cpu:fsccl,cuda:nccl" torch makes none of the other backends when one of them is a
        group. Therefore the other backend is made here at first use, in a group of its own."""
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
        """Returns {type of device: backend} as the program named them, or None if torch does not
        know this group."""
        known = dist.distributed_c10d._world.pg_backend_config.get(self)
        return dict(pair.split(':') for pair in str(known).lower().split(',')) if known else None

    def _get_backend(self, device):
        other = self.elsewhere(torch.device(device))
        return other._get_backend(device) if other else self

    @property
    def _device_types(self):
        return [torch.device(kind) for kind in self._map() or ('cpu', 'cuda')]

    def _set_default_backend(self, kind):
        """Does nothing: the only backend is this one."""

    def _get_backend_name(self):
        return self.getBackendName()

    # torch asks the C++ half of the group for its name, and the C++ half calls these functions.
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
        """Does nothing: the group is connected when it is made."""

    def _start_coalescing(self, device):
        self.start_coalescing()

    def _end_coalescing(self, device):
        return self.end_coalescing()


Base: Any = Backend if BACKEND else Group


class _NamedOptions(Backend.Options):
    """The options of a group, for torch before 2.8, whose own options have neither names nor
    ranks."""


Options: Any = Backend.Options if hasattr(Backend.Options, 'group_name') else _NamedOptions


class Adapter:
    """Translates the calls of a group that differ from those of a backend. It is the base before a
    class that has the functions of a backend."""

    def split_group(self, new_ranks, timeout=None, opts=None, group_name=None, group_desc=None):
        """Returns the group of `new_ranks`, which are ranks of this group, for
        torch.distributed.split_group(). Returns None on a rank that is not one of them."""
        options = Options(self.getBackendName(), timeout=timeout or self._options._timeout)
        options.group_name = group_name or ''
        try:
            return self.split(self._store, new_ranks, options)
        except NotImplementedError:  # a backend cannot return None
            return None

    @property
    def supports_shrinking(self):
        """Says no, because torch.distributed.shrink_group() would make a group of torch's own
        around this one. fsccl_torch.shrink() works without it."""
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


# Each entry has the names of a call at a group (the first is also the name at a backend), the
# number of its operands, the class of its options, and those fields of the options that may be
# given alone.
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
    """Returns the method `name` of a group, which calls the method `carried` of a backend. After
    its operands the method takes `options`, or values for `fields` of the options, or nothing."""

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
    """Returns the class that torch is given: `backend` itself if this torch takes a backend,
    otherwise a group made of it."""
    if BACKEND:
        return backend
    return untraced(
        type(
            backend.__name__,
            (Adapter, backend),
            {'__doc__': backend.__doc__, '__module__': backend.__module__},
        )
    )
