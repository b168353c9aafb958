# SPDX-License-Identifier: Apache-2.0
# fmt: off
# ruff: noqa
"""The declarations of the headers in include/fsccl for ctypes. Written by
tools/generate_capi.py: change the headers, and run that. The names are those of C without "fsccl_":
fsccl_pool_config_t is PoolConfig, FSCCL_ERR_TIMEOUT is ERR_TIMEOUT. Handles and addresses are plain
integers."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ssize_t,
    c_ubyte,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, ClassVar


class Struct(ctypes.Structure):
    """A struct whose fields are at first what its ..._INIT macro in C says, and zero where that
    says nothing."""

    _initial_: ClassVar[dict[str, Any]] = {}

    def __init__(self, *values: Any, **named: Any) -> None:
        given = {name for name, *_ in type(self)._fields_[: len(values)]}
        first = {name: value for name, value in self._initial_.items() if name not in given}
        super().__init__(*values, **{**first, **named})


class Sized(Struct):
    """A struct that begins with its own size."""

    size: int

    def __init__(self, **named: Any) -> None:
        super().__init__(**{'size': ctypes.sizeof(type(self)), **named})

    def figures(self) -> dict[str, Any]:
        """The fields after the size, by name."""
        return {name: getattr(self, name) for name, *_ in type(self)._fields_[1:]}

VERSION_MAJOR = 0
VERSION_MINOR = 1
VERSION_PATCH = 0
VERSION = 100
COLOR_NONE = -1
MAX_DIMS = 8
PARAM_FROZEN = 1
OK = 0
IN_PROGRESS = 1
ERR_INVALID_ARGUMENT = -1
ERR_INVALID_HANDLE = -2
ERR_INVALID_STATE = -3
ERR_NOT_AVAILABLE = -4
ERR_VERSION = -5
ERR_CONFIG = -6
ERR_FORKED = -7
ERR_OUT_OF_MEMORY = -20
ERR_LIMIT = -21
ERR_SYSTEM = -22
ERR_LINK = -40
ERR_PROTOCOL = -41
ERR_PEER_DEAD = -60
ERR_MISMATCH = -61
ERR_AUTH = -62
ERR_TIMEOUT = -63
ERR_ABORTED = -80
ERR_COMM_FAILED = -81
ERR_INTERNAL = -100
INT8 = 0
UINT8 = 1
INT16 = 2
UINT16 = 3
INT32 = 4
UINT32 = 5
INT64 = 6
UINT64 = 7
FLOAT16 = 8
BFLOAT16 = 9
FLOAT32 = 10
FLOAT64 = 11
BOOL = 12
FLOAT8_E4M3 = 13
FLOAT8_E5M2 = 14
DTYPE_COUNT = 15
OP_SUM = 0
OP_AVG = 1
OP_MIN = 2
OP_MAX = 3
OP_PROD = 4
OP_PREMUL_SUM = 5
MEMORY_HOST = 0
MEMORY_CUDA = 1
EVENT_UNSHARD = 0
EVENT_RESHARD = 1
EVENT_GRAD = 2
EVENT_REDUCE = 3
EVENT_RELEASE = 4
LAYOUT_FLAT = 0
LAYOUT_PER_PARAM = 1
LAYOUT_RAGGED = 2
SHARING_READ_ONLY = 0
SHARING_PRIVATE = 1
SHARING_COPY_ON_WRITE = 2
KEEP_NONE = 0
KEEP_ALWAYS = 1
KEEP_BUDGET = 2
UNSHARD_READ = 0
UNSHARD_WRITABLE = 1
ALLOCATOR_ABI = 1
CODEC_NIBBLES_ONLY = 1
CODEC_FEWEST_BYTES = 4
CODEC_NEVER_DECLINES = 2
CODEC_ERROR_FEEDBACK = 8
CODEC_NONE = 0
CODEC_DELTA = 1
CODEC_FP8 = 2
CODEC_INT8 = 3
CODEC_MXFP8 = 4
CODEC_BF16 = 5
CODEC_INT4 = 6
CODEC_CUSTOM = 7
CODEC_BETWEEN_HOSTS = 0
CODEC_EVERYWHERE = 1
ALL_RANKS = -1
PEER_ALIVE = 0
PEER_SUSPECT = 1
PEER_LEFT = 2
PEER_DEAD = 3
TOPOLOGY_TREE = 0
TOPOLOGY_JSON = 1
NO_SHARD = -1
PUBLISH_EXACT = 15


class ErrorInfo(Sized):
    code: int
    rank: int
    peer: int
    sequence: int
    operation: bytes | None
    text: bytes | None
    _fields_ = [
        ('size', c_size_t), ('code', c_int), ('rank', c_int), ('peer', c_int),
        ('sequence', c_uint64), ('operation', c_char_p), ('text', c_char_p),
    ]
    _initial_ = {'rank': -1, 'peer': -1, 'operation': b"", 'text': b""}


class Op(Struct):
    kind: int
    reserved: int
    scale: float
    _fields_ = [('kind', c_int32), ('reserved', c_int32), ('scale', c_double)]


class UniqueId(Struct):
    bytes: Any
    _fields_ = [('bytes', c_ubyte * 256)]


class CommConfig(Sized):
    version: int
    unique_id: Any
    all_gather: Any
    all_gather_context: int | None
    rank: int
    ranks: int
    nonblocking: int
    timeout_ms: int
    name: bytes | None
    _fields_ = [
        ('size', c_size_t), ('version', c_int), ('unique_id', POINTER(UniqueId)),
        ('all_gather', CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)),
        ('all_gather_context', c_void_p), ('rank', c_int), ('ranks', c_int), ('nonblocking', c_int),
        ('timeout_ms', c_int64), ('name', c_char_p),
    ]
    _initial_ = {'version': 100, 'rank': -1}


class Allocator(Sized):
    abi: int
    name: bytes | None
    memory: int
    device: int
    context: int | None
    allocate: Any
    deallocate: Any
    share: Any
    destroy: Any
    _fields_ = [
        ('size', c_size_t), ('abi', c_uint32), ('name', c_char_p), ('memory', c_int),
        ('device', c_int), ('context', c_void_p),
        ('allocate', CFUNCTYPE(c_int, c_void_p, c_size_t, c_size_t, c_void_p, POINTER(c_void_p))),
        ('deallocate', CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)),
        ('share', CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_int), POINTER(c_uint64))),
        ('destroy', CFUNCTYPE(c_int, c_void_p)),
    ]
    _initial_ = {'abi': 1}


class PoolConfig(Sized):
    memory: int
    device: int
    limit_bytes: int
    record: int
    name: bytes | None
    dry_run: int
    on_pressure: Any
    on_pressure_context: int | None
    soft_limit_bytes: int
    debug: int
    source: Any
    _fields_ = [
        ('size', c_size_t), ('memory', c_int), ('device', c_int), ('limit_bytes', c_uint64),
        ('record', c_int), ('name', c_char_p), ('dry_run', c_int),
        ('on_pressure', CFUNCTYPE(c_uint64, c_void_p, c_void_p, c_uint64)),
        ('on_pressure_context', c_void_p), ('soft_limit_bytes', c_uint64), ('debug', c_int),
        ('source', POINTER(Allocator)),
    ]
    _initial_ = {'record': 1}


class Event(Struct):
    kind: int
    unit: int | None
    first: int
    count: int
    _fields_ = [('kind', c_int), ('unit', c_void_p), ('first', c_size_t), ('count', c_size_t)]


class Param(Struct):
    name: bytes | None
    dims: int
    shape: Any
    dtype: int
    flags: int
    tied_to: int
    shard: int | None
    sharded_grad: int | None
    block_rows: int
    block_columns: int
    _fields_ = [
        ('name', c_char_p), ('dims', c_int), ('shape', c_int64 * 8), ('dtype', c_int),
        ('flags', c_uint32), ('tied_to', c_int), ('shard', c_void_p), ('sharded_grad', c_void_p),
        ('block_rows', c_uint64), ('block_columns', c_uint64),
    ]
    _initial_ = {'dtype': 10, 'tied_to': -1}


class BlockCodec(Sized):
    version: int
    name: bytes | None
    context: int | None
    bound: float
    bytes: Any
    encode: Any
    decode: Any
    _fields_ = [
        ('size', c_size_t), ('version', c_uint32), ('name', c_char_p), ('context', c_void_p),
        ('bound', c_double), ('bytes', CFUNCTYPE(c_size_t, c_void_p, c_size_t)),
        ('encode', CFUNCTYPE(None, c_void_p, POINTER(c_float), c_size_t, c_void_p)),
        ('decode', CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, POINTER(c_float))),
    ]


class Codec(Sized):
    kind: int
    scope: int
    flags: int
    max_relative_error: float
    block: int
    audit_every: int
    custom: Any
    _fields_ = [
        ('size', c_size_t), ('kind', c_int), ('scope', c_int), ('flags', c_uint32),
        ('max_relative_error', c_double), ('block', c_uint32), ('audit_every', c_uint32),
        ('custom', POINTER(BlockCodec)),
    ]


class UnitConfig(Sized):
    name: bytes | None
    layout: int
    shard_comm: int | None
    replicate_comm: int | None
    pool: int | None
    wire_dtype: int
    reduce_dtype: int
    grad_dtype: int
    sharing: int
    keep: int
    keep_budget_bytes: int
    marks_changes: int
    by_parameter: int
    gather_codec: Any
    param_size: int
    reduce_codec: Any
    _fields_ = [
        ('size', c_size_t), ('name', c_char_p), ('layout', c_int), ('shard_comm', c_void_p),
        ('replicate_comm', c_void_p), ('pool', c_void_p), ('wire_dtype', c_int),
        ('reduce_dtype', c_int), ('grad_dtype', c_int), ('sharing', c_int), ('keep', c_int),
        ('keep_budget_bytes', c_uint64), ('marks_changes', c_int), ('by_parameter', c_int),
        ('gather_codec', POINTER(Codec)), ('param_size', c_size_t),
        ('reduce_codec', POINTER(Codec)),
    ]
    _initial_ = {'layout': 1, 'wire_dtype': 9, 'reduce_dtype': 9, 'grad_dtype': 10}


class View(Struct):
    data: int | None
    count: int
    offset: int
    dtype: int
    _fields_ = [('data', c_void_p), ('count', c_uint64), ('offset', c_uint64), ('dtype', c_int)]


class ReduceResult(Struct):
    norm_squared: float
    finite: int
    _fields_ = [('norm_squared', c_double), ('finite', c_int)]


class ReduceConfig(Sized):
    scale: float
    accumulate: int
    defer_replicas: int
    grads: Any
    result: Any
    shard_ready: Any
    shard_ready_context: int | None
    sharded_grads: Any
    first: int
    count: int
    _fields_ = [
        ('size', c_size_t), ('scale', c_double), ('accumulate', c_int), ('defer_replicas', c_int),
        ('grads', POINTER(c_void_p)), ('result', POINTER(ReduceResult)),
        ('shard_ready', CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)),
        ('shard_ready_context', c_void_p), ('sharded_grads', POINTER(c_void_p)),
        ('first', c_size_t), ('count', c_size_t),
    ]


class Tensor(Struct):
    send: int | None
    recv: int | None
    counts: Any
    dtype: int
    _fields_ = [
        ('send', c_void_p), ('recv', c_void_p), ('counts', POINTER(c_size_t)), ('dtype', c_int),
    ]


class AllocatorStats(Sized):
    live_bytes: int
    peak_bytes: int
    total_bytes: int
    allocations: int
    frees: int
    failures: int
    _fields_ = [
        ('size', c_size_t), ('live_bytes', c_uint64), ('peak_bytes', c_uint64),
        ('total_bytes', c_uint64), ('allocations', c_uint64), ('frees', c_uint64),
        ('failures', c_uint64),
    ]


class ConfigEntry(Struct):
    name: bytes | None
    value: bytes | None
    default_value: bytes | None
    source: bytes | None
    accepted: bytes | None
    doc: bytes | None
    _fields_ = [
        ('name', c_char_p), ('value', c_char_p), ('default_value', c_char_p), ('source', c_char_p),
        ('accepted', c_char_p), ('doc', c_char_p),
    ]


class LaunchInfo(Sized):
    launcher: bytes | None
    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    one_host: int
    master_address: bytes | None
    master_port: int
    _fields_ = [
        ('size', c_size_t), ('launcher', c_char_p), ('rank', c_int), ('ranks', c_int),
        ('local_rank', c_int), ('local_ranks', c_int), ('one_host', c_int),
        ('master_address', c_char_p), ('master_port', c_int),
    ]
    _initial_ = {'rank': -1, 'local_rank': -1}


class Counters(Sized):
    operations: int
    bytes_read: int
    bytes_written: int
    kernel_copies: int
    sleeps: int
    _fields_ = [
        ('size', c_size_t), ('operations', c_uint64), ('bytes_read', c_uint64),
        ('bytes_written', c_uint64), ('kernel_copies', c_uint64), ('sleeps', c_uint64),
    ]


class TransportInfo(Struct):
    name: bytes | None
    available: int
    why: bytes | None
    _fields_ = [('name', c_char_p), ('available', c_int), ('why', c_char_p)]


class DeviceInfo(Struct):
    device: int
    available: int
    why: bytes | None
    name: bytes | None
    memory_bytes: int
    capability: int
    multiprocessors: int
    copy_engines: int
    descriptors: int
    fabric: int
    values_64: int
    batches: int
    driver: int
    _fields_ = [
        ('device', c_int), ('available', c_int), ('why', c_char_p), ('name', c_char_p),
        ('memory_bytes', c_uint64), ('capability', c_int), ('multiprocessors', c_int),
        ('copy_engines', c_int), ('descriptors', c_int), ('fabric', c_int), ('values_64', c_int),
        ('batches', c_int), ('driver', c_int),
    ]


class PoolStats(Sized):
    limit_bytes: int
    reserved_bytes: int
    shared_reserved_bytes: int
    live_bytes: int
    live_peak_bytes: int
    collective_live_bytes: int
    collective_peak_bytes: int
    local_live_bytes: int
    local_peak_bytes: int
    planned_bytes: int
    plan_bound_bytes: int
    plan_hits: int
    plan_misses: int
    allocations: int
    frees: int
    growths: int
    steps: int
    given_back_bytes: int
    _fields_ = [
        ('size', c_size_t), ('limit_bytes', c_uint64), ('reserved_bytes', c_uint64),
        ('shared_reserved_bytes', c_uint64), ('live_bytes', c_uint64),
        ('live_peak_bytes', c_uint64), ('collective_live_bytes', c_uint64),
        ('collective_peak_bytes', c_uint64), ('local_live_bytes', c_uint64),
        ('local_peak_bytes', c_uint64), ('planned_bytes', c_uint64), ('plan_bound_bytes', c_uint64),
        ('plan_hits', c_uint64), ('plan_misses', c_uint64), ('allocations', c_uint64),
        ('frees', c_uint64), ('growths', c_uint64), ('steps', c_uint64),
        ('given_back_bytes', c_uint64),
    ]


class PoolOwner(Sized):
    kind: bytes | None
    owner: bytes | None
    stream: int | None
    live_bytes: int
    peak_bytes: int
    allocations: int
    frees: int
    allocated_bytes: int
    _fields_ = [
        ('size', c_size_t), ('kind', c_char_p), ('owner', c_char_p), ('stream', c_void_p),
        ('live_bytes', c_uint64), ('peak_bytes', c_uint64), ('allocations', c_uint64),
        ('frees', c_uint64), ('allocated_bytes', c_uint64),
    ]


class CodecReport(Sized):
    gathers: int
    coded: int
    plain: int
    declined: int
    mended: int
    plain_bytes: int
    sent_bytes: int
    state_bytes: int
    plain_us: float
    coded_us: float
    declines: int
    blocks: int
    exact_blocks: int
    audited_blocks: int
    beyond_bound: int
    max_error: float
    bound: float
    reductions: int
    reduce_plain_bytes: int
    reduce_sent_bytes: int
    reduce_state_bytes: int
    gather_codec: bytes | None
    reduce_codec: bytes | None
    _fields_ = [
        ('size', c_size_t), ('gathers', c_uint64), ('coded', c_uint64), ('plain', c_uint64),
        ('declined', c_uint64), ('mended', c_uint64), ('plain_bytes', c_uint64),
        ('sent_bytes', c_uint64), ('state_bytes', c_uint64), ('plain_us', c_double),
        ('coded_us', c_double), ('declines', c_int), ('blocks', c_uint64),
        ('exact_blocks', c_uint64), ('audited_blocks', c_uint64), ('beyond_bound', c_uint64),
        ('max_error', c_double), ('bound', c_double), ('reductions', c_uint64),
        ('reduce_plain_bytes', c_uint64), ('reduce_sent_bytes', c_uint64),
        ('reduce_state_bytes', c_uint64), ('gather_codec', c_char_p), ('reduce_codec', c_char_p),
    ]


class Piece(Struct):
    begin: int
    count: int
    _fields_ = [('begin', c_uint64), ('count', c_uint64)]


class LayoutStats(Sized):
    elements: int
    largest_shard: int
    padding: int
    padding_bound: int
    _fields_ = [
        ('size', c_size_t), ('elements', c_uint64), ('largest_shard', c_uint64),
        ('padding', c_uint64), ('padding_bound', c_uint64),
    ]


class ExplainConfig(Sized):
    hosts: int
    ranks_per_host: int
    topology: bytes | None
    tuning: bytes | None
    _fields_ = [
        ('size', c_size_t), ('hosts', c_int), ('ranks_per_host', c_int), ('topology', c_char_p),
        ('tuning', c_char_p),
    ]
    _initial_ = {'hosts': 1, 'ranks_per_host': 2}


class Sharding(Struct):
    layout: int
    ranks: int
    rank: int
    _fields_ = [('layout', c_int), ('ranks', c_int), ('rank', c_int)]


class Redistributed(Struct):
    param: int
    dtype: int
    from_: int | None
    to: int | None
    _fields_ = [('param', c_size_t), ('dtype', c_int), ('from_', c_void_p), ('to', c_void_p)]


class RedistributeConfig(Sized):
    params: Any
    count: int
    from_: Sharding
    to: Sharding
    version: int
    limit_bytes: int
    param_size: int
    buffer_size: int
    _fields_ = [
        ('size', c_size_t), ('params', POINTER(Param)), ('count', c_size_t), ('from_', Sharding),
        ('to', Sharding), ('version', c_uint64), ('limit_bytes', c_uint64),
        ('param_size', c_size_t), ('buffer_size', c_size_t),
    ]
    _initial_ = {'from_': Sharding(1, 0, -1), 'to': Sharding(1, 0, -1)}


class PublishConfig(Sized):
    params: Any
    count: int
    layout: int
    unit_params: Any
    units: int
    wire_dtype: int
    limit_bytes: int
    timeout_ms: int
    linger_ms: int
    flags: int
    port: int
    max_subscribers: int
    name: bytes | None
    param_size: int
    _fields_ = [
        ('size', c_size_t), ('params', POINTER(Param)), ('count', c_size_t), ('layout', c_int),
        ('unit_params', POINTER(c_size_t)), ('units', c_size_t), ('wire_dtype', c_int),
        ('limit_bytes', c_uint64), ('timeout_ms', c_int64), ('linger_ms', c_int64),
        ('flags', c_uint32), ('port', c_int), ('max_subscribers', c_int), ('name', c_char_p),
        ('param_size', c_size_t),
    ]
    _initial_ = {'layout': 1, 'wire_dtype': 9, 'linger_ms': 2000, 'max_subscribers': 64}


class PublishReport(Sized):
    version: int
    words_bytes: int
    copy_bytes: int
    held_bytes: int
    held_peak_bytes: int
    sending_bytes: int
    limit_bytes: int
    record_bytes: int
    records_bytes: int
    records: int
    sent_bytes: int
    whole_copies: int
    given_up: int
    disconnected: int
    strangers: int
    publish_cpu_s: float
    serving_cpu_s: float
    subscribers: int
    port: int
    _fields_ = [
        ('size', c_size_t), ('version', c_uint64), ('words_bytes', c_uint64),
        ('copy_bytes', c_uint64), ('held_bytes', c_uint64), ('held_peak_bytes', c_uint64),
        ('sending_bytes', c_uint64), ('limit_bytes', c_uint64), ('record_bytes', c_uint64),
        ('records_bytes', c_uint64), ('records', c_uint64), ('sent_bytes', c_uint64),
        ('whole_copies', c_uint64), ('given_up', c_uint64), ('disconnected', c_uint64),
        ('strangers', c_uint64), ('publish_cpu_s', c_double), ('serving_cpu_s', c_double),
        ('subscribers', c_int), ('port', c_int),
    ]


class SubscribeConfig(Sized):
    ticket: Any
    address: bytes | None
    params: Any
    count: int
    sharding: Sharding
    timeout_ms: int
    name: bytes | None
    param_size: int
    _fields_ = [
        ('size', c_size_t), ('ticket', POINTER(UniqueId)), ('address', c_char_p),
        ('params', POINTER(Param)), ('count', c_size_t), ('sharding', Sharding),
        ('timeout_ms', c_int64), ('name', c_char_p), ('param_size', c_size_t),
    ]
    _initial_ = {'sharding': Sharding(1, 1, 0)}


class Publication(Sized):
    version: int
    label: int
    _fields_ = [('size', c_size_t), ('version', c_uint64), ('label', c_uint64)]


class SubscribeReport(Sized):
    version: int
    newest: int
    words_bytes: int
    received_bytes: int
    whole_bytes: int
    versions: int
    whole_copies: int
    damaged: int
    reconnections: int
    held_bytes: int
    apply_cpu_s: float
    _fields_ = [
        ('size', c_size_t), ('version', c_uint64), ('newest', c_uint64), ('words_bytes', c_uint64),
        ('received_bytes', c_uint64), ('whole_bytes', c_uint64), ('versions', c_uint64),
        ('whole_copies', c_uint64), ('damaged', c_uint64), ('reconnections', c_uint64),
        ('held_bytes', c_uint64), ('apply_cpu_s', c_double),
    ]


FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    'fsccl_status_string': (c_char_p, [c_int]),
    'fsccl_last_error': (c_int, [POINTER(ErrorInfo)]),
    'fsccl_version': (c_int, [POINTER(c_int)]),
    'fsccl_config_set': (c_int, [c_char_p, c_char_p]),
    'fsccl_dtype_size': (c_size_t, [c_int]),
    'fsccl_unique_id_create': (c_int, [POINTER(UniqueId)]),
    'fsccl_comm_create': (c_int, [POINTER(CommConfig), POINTER(c_void_p)]),
    'fsccl_comm_split': (c_int, [c_void_p, c_int, c_int, POINTER(CommConfig), POINTER(c_void_p)]),
    'fsccl_comm_subset': (c_int, [
        c_void_p, POINTER(c_int), c_size_t, c_uint64, POINTER(CommConfig), POINTER(c_void_p),
    ]),
    'fsccl_comm_shrink': (c_int, [c_void_p, POINTER(CommConfig), POINTER(c_void_p)]),
    'fsccl_comm_abort': (c_int, [c_void_p]),
    'fsccl_comm_destroy': (c_int, [c_void_p]),
    'fsccl_comm_rank': (c_int, [c_void_p, POINTER(c_int)]),
    'fsccl_comm_size': (c_int, [c_void_p, POINTER(c_int)]),
    'fsccl_comm_local_rank': (c_int, [c_void_p, POINTER(c_int), POINTER(c_int)]),
    'fsccl_comm_async_error': (c_int, [c_void_p, POINTER(c_int)]),
    'fsccl_pool_create': (c_int, [c_void_p, POINTER(PoolConfig), POINTER(c_void_p)]),
    'fsccl_pool_destroy': (c_int, [c_void_p]),
    'fsccl_pool_alloc': (c_int, [c_void_p, c_size_t, c_void_p, POINTER(c_void_p)]),
    'fsccl_pool_free': (c_int, [c_void_p, c_void_p, c_void_p]),
    'fsccl_pool_import': (c_int, [c_void_p, c_void_p, c_size_t]),
    'fsccl_pool_schedule': (c_int, [c_void_p, POINTER(Event), c_size_t]),
    'fsccl_pool_step': (c_int, [c_void_p]),
    'fsccl_unit_create': (c_int, [
        POINTER(UnitConfig), POINTER(Param), c_size_t, POINTER(c_void_p),
    ]),
    'fsccl_unit_destroy': (c_int, [c_void_p]),
    'fsccl_unit_unshard': (c_int, [c_void_p, c_int, c_void_p, POINTER(c_void_p)]),
    'fsccl_unit_param': (c_int, [c_void_p, c_size_t, POINTER(View)]),
    'fsccl_unit_shard': (c_int, [c_void_p, c_size_t, POINTER(View)]),
    'fsccl_unit_set_shards': (c_int, [c_void_p, POINTER(c_void_p)]),
    'fsccl_unit_mark_changed': (c_int, [c_void_p]),
    'fsccl_unit_reshard': (c_int, [c_void_p, c_void_p]),
    'fsccl_unit_release': (c_int, [c_void_p, c_size_t, c_void_p]),
    'fsccl_unit_grad': (c_int, [c_void_p, c_size_t, c_void_p, POINTER(View)]),
    'fsccl_unit_sharded_grad': (c_int, [c_void_p, c_size_t, POINTER(View)]),
    'fsccl_unit_reduce_grads': (c_int, [
        c_void_p, POINTER(ReduceConfig), c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_unit_broadcast_state': (c_int, [c_void_p, c_int, c_void_p, POINTER(c_void_p)]),
    'fsccl_all_gather': (c_int, [
        c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_reduce_scatter': (c_int, [
        c_void_p, c_void_p, c_size_t, c_int, Op, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_all_reduce': (c_int, [
        c_void_p, c_void_p, c_size_t, c_int, Op, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_broadcast': (c_int, [
        c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_barrier': (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    'fsccl_all_gather_v': (c_int, [
        c_void_p, c_void_p, POINTER(c_size_t), POINTER(c_size_t), c_int, c_void_p, c_void_p,
        POINTER(c_void_p),
    ]),
    'fsccl_reduce_scatter_v': (c_int, [
        c_void_p, c_void_p, POINTER(c_size_t), c_int, Op, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_all_to_all_v': (c_int, [
        c_void_p, POINTER(c_size_t), POINTER(c_size_t), c_void_p, POINTER(c_size_t),
        POINTER(c_size_t), c_int, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_reduce': (c_int, [
        c_void_p, c_void_p, c_size_t, c_int, Op, c_int, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_gather': (c_int, [
        c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_scatter': (c_int, [
        c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_all_to_all': (c_int, [
        c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_send': (c_int, [
        c_void_p, c_size_t, c_int, c_int, c_int, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_recv': (c_int, [
        c_void_p, c_size_t, c_int, c_int, c_int, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_group_start': (c_int, []),
    'fsccl_group_end': (c_int, []),
    'fsccl_all_gather_list': (c_int, [
        POINTER(Tensor), c_size_t, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_reduce_scatter_list': (c_int, [
        POINTER(Tensor), c_size_t, Op, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_broadcast_list': (c_int, [
        POINTER(Tensor), c_size_t, c_int, c_void_p, c_void_p, POINTER(c_void_p),
    ]),
    'fsccl_work_test': (c_int, [c_void_p]),
    'fsccl_work_wait': (c_int, [c_void_p, c_int64]),
    'fsccl_work_callback': (c_int, [c_void_p, CFUNCTYPE(None, c_void_p, c_int), c_void_p]),
    'fsccl_work_event_fd': (c_int, [c_void_p, POINTER(c_int)]),
    'fsccl_work_release': (c_int, [c_void_p]),
    'fsccl_allocator_host': (c_int, [POINTER(Allocator)]),
    'fsccl_allocator_cuda': (c_int, [c_int, POINTER(Allocator)]),
    'fsccl_pool_allocator': (c_int, [c_void_p, POINTER(Allocator)]),
    'fsccl_allocator_limit': (c_int, [POINTER(Allocator), c_uint64, POINTER(Allocator)]),
    'fsccl_allocator_count': (c_int, [POINTER(Allocator), POINTER(Allocator)]),
    'fsccl_allocator_stats': (c_int, [POINTER(Allocator), POINTER(AllocatorStats)]),
    'fsccl_allocator_log': (c_int, [POINTER(Allocator), c_char_p, POINTER(Allocator)]),
    'fsccl_allocator_guard': (c_int, [
        POINTER(Allocator), CFUNCTYPE(None, c_void_p, c_char_p), c_void_p, POINTER(Allocator),
    ]),
    'fsccl_allocator_on_failure': (c_int, [
        POINTER(Allocator), CFUNCTYPE(c_uint64, c_void_p, c_uint64), c_void_p, POINTER(Allocator),
    ]),
    'fsccl_torch_use': (c_int, [c_int, POINTER(Allocator)]),
    'fsccl_torch_malloc': (c_void_p, [c_ssize_t, c_int, c_void_p]),
    'fsccl_torch_free': (None, [c_void_p, c_ssize_t, c_int, c_void_p]),
    'fsccl_config_get': (c_int, [c_char_p, c_char_p, c_size_t]),
    'fsccl_config_dump': (c_int, [CFUNCTYPE(None, c_void_p, POINTER(ConfigEntry)), c_void_p]),
    'fsccl_launcher': (c_int, [POINTER(LaunchInfo)]),
    'fsccl_comm_counters': (c_int, [c_void_p, POINTER(Counters)]),
    'fsccl_comm_set_site': (c_int, [c_void_p, c_uint64]),
    'fsccl_comm_peer_state': (c_int, [c_void_p, c_int, POINTER(c_int)]),
    'fsccl_probe': (c_int, [c_int, c_void_p]),
    'fsccl_work_error': (c_int, [c_void_p]),
    'fsccl_transport_list': (c_int, [CFUNCTYPE(None, c_void_p, POINTER(TransportInfo)), c_void_p]),
    'fsccl_device_list': (c_int, [CFUNCTYPE(None, c_void_p, POINTER(DeviceInfo)), c_void_p]),
    'fsccl_pool_stats': (c_int, [c_void_p, POINTER(PoolStats)]),
    'fsccl_pool_trim': (c_int, [c_void_p, POINTER(c_uint64)]),
    'fsccl_pool_owners': (c_int, [
        c_void_p, CFUNCTYPE(None, c_void_p, POINTER(PoolOwner)), c_void_p,
    ]),
    'fsccl_pool_snapshot': (c_int, [c_void_p, c_char_p]),
    'fsccl_unit_codec': (c_int, [c_void_p, POINTER(CodecReport)]),
    'fsccl_unit_verify_replicas': (c_int, [c_void_p]),
    'fsccl_layout_plan': (c_int, [
        c_int, POINTER(Param), c_size_t, c_int, c_int, POINTER(Piece), POINTER(LayoutStats),
    ]),
    'fsccl_explain': (c_int, [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t]),
    'fsccl_explain_for': (c_int, [
        POINTER(ExplainConfig), c_char_p, c_size_t, CFUNCTYPE(None, c_void_p, c_char_p, c_size_t),
        c_void_p,
    ]),
    'fsccl_topology_describe': (c_int, [
        c_char_p, c_int, CFUNCTYPE(None, c_void_p, c_char_p, c_size_t), c_void_p,
    ]),
    'fsccl_topology_between': (c_int, [
        c_char_p, c_char_p, c_char_p, CFUNCTYPE(None, c_void_p, c_char_p, c_size_t), c_void_p,
    ]),
    'fsccl_topology_dump': (c_int, [c_char_p, c_size_t]),
    'fsccl_trace_dump': (c_int, [c_char_p]),
    'fsccl_trace_read': (c_int, [
        c_char_p, CFUNCTYPE(None, c_void_p, c_char_p, c_size_t), c_void_p,
    ]),
    'fsccl_metrics': (c_int, [CFUNCTYPE(None, c_void_p, c_char_p, c_size_t), c_void_p]),
    'fsccl_forecast': (c_int, [c_char_p, CFUNCTYPE(None, c_void_p, c_char_p, c_size_t), c_void_p]),
    'fsccl_redistribute': (c_int, [
        POINTER(RedistributeConfig), POINTER(Redistributed), c_size_t, c_void_p, POINTER(c_uint64),
    ]),
    'fsccl_publisher_create': (c_int, [POINTER(PublishConfig), c_void_p, POINTER(c_void_p)]),
    'fsccl_publish': (c_int, [c_void_p, POINTER(c_void_p), c_uint64]),
    'fsccl_publisher_ticket': (c_int, [c_void_p, POINTER(UniqueId)]),
    'fsccl_publisher_report': (c_int, [c_void_p, POINTER(PublishReport)]),
    'fsccl_publisher_destroy': (c_int, [c_void_p]),
    'fsccl_subscribe': (c_int, [POINTER(SubscribeConfig), POINTER(c_void_p)]),
    'fsccl_subscriber_update': (c_int, [c_void_p, c_int64, POINTER(Publication)]),
    'fsccl_subscriber_report': (c_int, [c_void_p, POINTER(SubscribeReport)]),
    'fsccl_subscriber_destroy': (c_int, [c_void_p]),
}


def declare(library: ctypes.CDLL) -> None:
    """Tells ctypes the parameters and the result of every function of the headers. AttributeError
    names one that `library` does not have."""
    for name, (result, parameters) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
