# SPDX-License-Identifier: Apache-2.0
"""The C API of libfsccl for Python: the library is found and its version compared, functions get
their signatures, and a negative status becomes an FscclError. Nothing here knows of torch beyond
the exception's base class.

Functions are called as they stand in fsccl.h, `check(lib.fsccl_barrier(comm, None, None))`. Each
call gives up the interpreter's lock, so that other Python threads run while one waits. Handles and
addresses are plain integers.
"""

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    byref,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)

from torch.distributed import DistBackendError

from . import _library

VERSION = (0, 1)  # major and minor of the header that the signatures below follow

OK, IN_PROGRESS = 0, 1
ERR_INVALID_ARGUMENT, ERR_INVALID_HANDLE, ERR_INVALID_STATE, ERR_NOT_AVAILABLE = -1, -2, -3, -4
ERR_CONFIG, ERR_FORKED, ERR_PEER_DEAD, ERR_MISMATCH, ERR_TIMEOUT, ERR_ABORTED, ERR_COMM_FAILED = (
    -6,
    -7,
    -60,
    -61,
    -63,
    -80,
    -81,
)

INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64 = range(8)
FLOAT16, BFLOAT16, FLOAT32, FLOAT64, BOOL, FLOAT8_E4M3, FLOAT8_E5M2 = range(8, 15)
OP_SUM, OP_AVG, OP_MIN, OP_MAX, OP_PROD, OP_PREMUL_SUM = range(6)

MEMORY_HOST, MEMORY_CUDA = range(2)
LAYOUT_FLAT, LAYOUT_PER_PARAM, LAYOUT_RAGGED = range(3)
SHARING_READ_ONLY, SHARING_PRIVATE, SHARING_COPY_ON_WRITE = range(3)
KEEP_NONE, KEEP_ALWAYS, KEEP_BUDGET = range(3)
PARAM_FROZEN = 1
MAX_DIMS = 8
NO_SHARD = -1


class _Sized(ctypes.Structure):
    """A configuration struct: begins with its own size, the rest is zero unless given."""

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(type(self)), **fields)

    def figures(self):
        """{name: value} of the fields after the size."""
        return {name: getattr(self, name) for name, *_ in self._fields_[1:]}


class ErrorInfo(_Sized):
    _fields_ = [
        ('size', c_size_t),
        ('code', c_int),
        ('rank', c_int),
        ('peer', c_int),
        ('sequence', c_uint64),
        ('operation', c_char_p),
        ('text', c_char_p),
    ]


class UniqueId(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_ubyte * 256)]


class Op(ctypes.Structure):
    _fields_ = [('kind', c_int32), ('reserved', c_int32), ('scale', c_double)]


class CommConfig(_Sized):
    _fields_ = [
        ('size', c_size_t),
        ('version', c_int),
        ('unique_id', POINTER(UniqueId)),
        ('all_gather', c_void_p),
        ('all_gather_context', c_void_p),
        ('rank', c_int),
        ('ranks', c_int),
        ('nonblocking', c_int),
        ('timeout_ms', c_int64),
        ('name', c_char_p),
    ]


class LaunchInfo(_Sized):
    _fields_ = [
        ('size', c_size_t),
        ('launcher', c_char_p),
        ('rank', c_int),
        ('ranks', c_int),
        ('local_rank', c_int),
        ('local_ranks', c_int),
        ('one_host', c_int),
        ('master_address', c_char_p),
        ('master_port', c_int),
    ]


class PoolConfig(_Sized):
    _fields_ = [
        ('size', c_size_t),
        ('memory', c_int),
        ('device', c_int),
        ('limit_bytes', c_uint64),
        ('record', c_int),
        ('name', c_char_p),
        ('dry_run', c_int),
        ('on_pressure', c_void_p),
        ('on_pressure_context', c_void_p),
        ('soft_limit_bytes', c_uint64),
        ('debug', c_int),
        ('source', c_void_p),
    ]


class PoolStats(_Sized):
    _fields_ = [('size', c_size_t)] + [
        (name, c_uint64)
        for name in (
            'limit_bytes',
            'reserved_bytes',
            'shared_reserved_bytes',
            'live_bytes',
            'live_peak_bytes',
            'collective_live_bytes',
            'collective_peak_bytes',
            'local_live_bytes',
            'local_peak_bytes',
            'planned_bytes',
            'plan_bound_bytes',
            'plan_hits',
            'plan_misses',
            'allocations',
            'frees',
            'growths',
            'steps',
            'given_back_bytes',
        )
    ]


class Param(ctypes.Structure):
    _fields_ = [
        ('name', c_char_p),
        ('dims', c_int),
        ('shape', c_int64 * MAX_DIMS),
        ('dtype', c_int),
        ('flags', c_uint32),
        ('tied_to', c_int),
        ('shard', c_void_p),
        ('sharded_grad', c_void_p),
        ('block_rows', c_uint64),
        ('block_columns', c_uint64),
    ]


class UnitConfig(_Sized):
    _fields_ = [
        ('size', c_size_t),
        ('name', c_char_p),
        ('layout', c_int),
        ('shard_comm', c_void_p),
        ('replicate_comm', c_void_p),
        ('pool', c_void_p),
        ('wire_dtype', c_int),
        ('reduce_dtype', c_int),
        ('grad_dtype', c_int),
        ('sharing', c_int),
        ('keep', c_int),
        ('keep_budget_bytes', c_uint64),
        ('marks_changes', c_int),
        ('by_parameter', c_int),
    ]


class View(ctypes.Structure):
    _fields_ = [('data', c_void_p), ('count', c_uint64), ('offset', c_uint64), ('dtype', c_int)]


class Sharding(ctypes.Structure):
    _fields_ = [('layout', c_int), ('ranks', c_int), ('rank', c_int)]


class Resharded(ctypes.Structure):
    _fields_ = [('param', c_size_t), ('dtype', c_int), ('from_', c_void_p), ('to', c_void_p)]


class ReshardConfig(_Sized):
    _fields_ = [
        ('size', c_size_t),
        ('params', POINTER(Param)),
        ('count', c_size_t),
        ('from_', Sharding),
        ('to', Sharding),
        ('version', c_uint64),
        ('limit_bytes', c_uint64),
    ]


class ReduceConfig(_Sized):
    _fields_ = [
        ('size', c_size_t),
        ('scale', c_double),
        ('accumulate', c_int),
        ('defer_replicas', c_int),
        ('grads', POINTER(c_void_p)),
        ('result', c_void_p),
        ('shard_ready', c_void_p),
        ('shard_ready_context', c_void_p),
        ('sharded_grads', POINTER(c_void_p)),
        ('first', c_size_t),
        ('count', c_size_t),
    ]


class Tensor(ctypes.Structure):
    _fields_ = [
        ('send', c_void_p),
        ('recv', c_void_p),
        ('counts', POINTER(c_size_t)),
        ('dtype', c_int),
    ]


class Allocator(ctypes.Structure):
    """Only made and handed on: its functions are not called from Python, but the last."""

    _fields_ = [
        ('size', c_size_t),
        ('abi', c_uint32),
        ('name', c_char_p),
        ('memory', c_int),
        ('device', c_int),
        ('context', c_void_p),
        ('allocate', c_void_p),
        ('deallocate', c_void_p),
        ('share', c_void_p),
        ('destroy', CFUNCTYPE(c_int, c_void_p)),
    ]


class Counters(_Sized):
    _fields_ = [('size', c_size_t)] + [
        (name, c_uint64)
        for name in ('operations', 'bytes_read', 'bytes_written', 'kernel_copies', 'sleeps')
    ]


WORK_DONE = CFUNCTYPE(None, c_void_p, c_int)

_work = POINTER(c_void_p)
_tail = [c_void_p, c_void_p, _work]  # comm, stream, work
_sizes = POINTER(c_size_t)
_SIGNATURES = {
    'fsccl_last_error': [POINTER(ErrorInfo)],
    'fsccl_version': [POINTER(c_int)],
    'fsccl_config_set': [c_char_p, c_char_p],
    'fsccl_unique_id_create': [POINTER(UniqueId)],
    'fsccl_launcher': [POINTER(LaunchInfo)],
    'fsccl_comm_create': [POINTER(CommConfig), POINTER(c_void_p)],
    'fsccl_comm_split': [c_void_p, c_int, c_int, POINTER(CommConfig), POINTER(c_void_p)],
    'fsccl_comm_subset': [
        c_void_p,
        POINTER(c_int),
        c_size_t,
        c_uint64,
        POINTER(CommConfig),
        POINTER(c_void_p),
    ],
    'fsccl_comm_shrink': [c_void_p, POINTER(CommConfig), POINTER(c_void_p)],
    'fsccl_comm_peer_state': [c_void_p, c_int, POINTER(c_int)],
    'fsccl_comm_abort': [c_void_p],
    'fsccl_comm_destroy': [c_void_p],
    'fsccl_comm_size': [c_void_p, POINTER(c_int)],
    'fsccl_comm_async_error': [c_void_p, POINTER(c_int)],
    'fsccl_comm_local_rank': [c_void_p, POINTER(c_int), POINTER(c_int)],
    'fsccl_comm_counters': [c_void_p, POINTER(Counters)],
    'fsccl_pool_create': [c_void_p, POINTER(PoolConfig), POINTER(c_void_p)],
    'fsccl_pool_destroy': [c_void_p],
    'fsccl_pool_alloc': [c_void_p, c_size_t, c_void_p, POINTER(c_void_p)],
    'fsccl_pool_free': [c_void_p, c_void_p, c_void_p],
    'fsccl_pool_stats': [c_void_p, POINTER(PoolStats)],
    'fsccl_pool_trim': [c_void_p, POINTER(c_uint64)],
    'fsccl_pool_step': [c_void_p],
    'fsccl_pool_allocator': [c_void_p, POINTER(Allocator)],
    'fsccl_torch_use': [c_int, POINTER(Allocator)],
    'fsccl_unit_create': [POINTER(UnitConfig), POINTER(Param), c_size_t, POINTER(c_void_p)],
    'fsccl_unit_destroy': [c_void_p],
    'fsccl_unit_unshard': [c_void_p, c_int, _work],
    'fsccl_unit_param': [c_void_p, c_size_t, POINTER(View)],
    'fsccl_unit_shard': [c_void_p, c_size_t, POINTER(View)],
    'fsccl_unit_set_shards': [c_void_p, POINTER(c_void_p)],
    'fsccl_unit_mark_changed': [c_void_p],
    'fsccl_unit_set_stream': [c_void_p, c_void_p],
    'fsccl_unit_reshard': [c_void_p],
    'fsccl_unit_grad': [c_void_p, c_size_t, POINTER(View)],
    'fsccl_unit_sharded_grad': [c_void_p, c_size_t, POINTER(View)],
    'fsccl_unit_reduce_grads': [c_void_p, POINTER(ReduceConfig), _work],
    'fsccl_reshard': [
        POINTER(ReshardConfig),
        POINTER(Resharded),
        c_size_t,
        c_void_p,
        POINTER(c_uint64),
    ],
    'fsccl_all_gather': [c_void_p, c_void_p, c_size_t, c_int, *_tail],
    'fsccl_reduce_scatter': [c_void_p, c_void_p, c_size_t, c_int, Op, *_tail],
    'fsccl_all_reduce': [c_void_p, c_void_p, c_size_t, c_int, Op, *_tail],
    'fsccl_broadcast': [c_void_p, c_size_t, c_int, c_int, *_tail],
    'fsccl_barrier': _tail,
    'fsccl_all_gather_v': [c_void_p, c_void_p, _sizes, _sizes, c_int, *_tail],
    'fsccl_reduce_scatter_v': [c_void_p, c_void_p, _sizes, c_int, Op, *_tail],
    'fsccl_all_to_all_v': [c_void_p, _sizes, _sizes, c_void_p, _sizes, _sizes, c_int, *_tail],
    'fsccl_reduce': [c_void_p, c_void_p, c_size_t, c_int, Op, c_int, *_tail],
    'fsccl_gather': [c_void_p, c_void_p, c_size_t, c_int, c_int, *_tail],
    'fsccl_scatter': [c_void_p, c_void_p, c_size_t, c_int, c_int, *_tail],
    'fsccl_all_to_all': [c_void_p, c_void_p, c_size_t, c_int, *_tail],
    'fsccl_send': [c_void_p, c_size_t, c_int, c_int, c_int, *_tail],
    'fsccl_recv': [c_void_p, c_size_t, c_int, c_int, c_int, *_tail],
    'fsccl_probe': [c_int, c_void_p],
    'fsccl_group_start': [],
    'fsccl_group_end': [],
    'fsccl_all_gather_list': [POINTER(Tensor), c_size_t, *_tail],
    'fsccl_reduce_scatter_list': [POINTER(Tensor), c_size_t, Op, *_tail],
    'fsccl_broadcast_list': [POINTER(Tensor), c_size_t, c_int, *_tail],
    'fsccl_work_test': [c_void_p],
    'fsccl_work_wait': [c_void_p, c_int64],
    'fsccl_work_error': [c_void_p],
    'fsccl_work_callback': [c_void_p, WORK_DONE, c_void_p],
    'fsccl_work_release': [c_void_p],
}


def _load():
    found, library = _library.load()
    try:
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        library.fsccl_status_string.argtypes, library.fsccl_status_string.restype = (
            [c_int],
            c_char_p,
        )
    except AttributeError as error:
        raise ImportError(
            f'fsccl_torch: {found} is no libfsccl of version {VERSION[0]}.{VERSION[1]}: {error}. '
            f'Install a library '
            'and a package of the same version: `pip install --upgrade fsccl fsccl-torch`.'
        ) from error
    number = c_int()
    library.fsccl_version(byref(number))
    theirs = divmod(number.value // 100, 100)
    # Before 1.0 a minor version may change the API; from 1.0 on it only grows within a major
    # version.
    if (
        theirs[0] != VERSION[0]
        or theirs[1] < VERSION[1]
        or (VERSION[0] == 0 and theirs[1] != VERSION[1])
    ):
        raise ImportError(
            f'fsccl_torch: {found} is FSCCL {theirs[0]}.{theirs[1]}, this package is made for '
            f'{VERSION[0]}.{VERSION[1]}. Install a library and a package of the same version: '
            '`pip install --upgrade fsccl fsccl-torch`.'
        )
    return found, library, number.value


class FscclError(DistBackendError):
    """A call of FSCCL failed. `code` is its fsccl_status_t; `rank`, `peer` (the other rank
    concerned) and `sequence` are -1, -1 and 0 where unknown; the text says what happened and what
    to do."""

    def __init__(self, message, code=0, rank=-1, peer=-1, sequence=0, operation=''):
        super().__init__(message)
        self.code, self.rank, self.peer, self.sequence, self.operation = (
            code,
            rank,
            peer,
            sequence,
            operation,
        )


_path, lib, library_version = _load()


def path():
    """The file of the libfsccl that this process uses, for those that load it by its name."""
    return _path


def error(status):
    """The FscclError of a negative status that the last call of this thread returned."""
    info = ErrorInfo()
    lib.fsccl_last_error(byref(info))
    name = lib.fsccl_status_string(status).decode()
    if info.code != status:
        return FscclError(name, status)
    operation, text = (
        (info.operation or b'').decode(errors='replace'),
        (info.text or b'').decode(errors='replace'),
    )
    rank = f'rank {info.rank}: ' if info.rank >= 0 else ''
    return FscclError(
        f'{rank}{operation}: {text} [{name}]',
        status,
        info.rank,
        info.peer,
        info.sequence,
        operation,
    )


def check(status):
    """The status itself if it is no error; raises FscclError if it is."""
    if status < 0:
        raise error(status)
    return status
