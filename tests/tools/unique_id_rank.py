"""A rank that joins the others by the unique id in its standard input, makes each kind of call that
prints or writes something, and then loses rank 1. usage: unique_id_rank.py LIBRARY RANK RANKS
FOLDER. With LIBRARY and RANKS only, it makes the id, and keeps it until its input ends."""

import ctypes
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / 'perf/failures'))
from ranks import by_id, c, last_error, load

lib = load(sys.argv[1])


def said():
    return last_error(lib).text.decode()


def must(status):
    if status < 0:
        sys.exit(f'{status}: {said()}')


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
def show(_, text, _bytes):
    os.write(1, text)


def make_id():
    unique = c.UniqueId()
    must(lib.fsccl_unique_id_create(ctypes.byref(unique)))
    os.write(1, bytes(unique.bytes))
    sys.stdin.read()


def be_rank(rank, ranks, folder):
    unique = c.UniqueId((ctypes.c_ubyte * 256)(*sys.stdin.buffer.read(256)))
    # Wrong ids are refused with an error that says why.
    cut = c.UniqueId((ctypes.c_ubyte * 256)(*bytes(unique.bytes)[:200]))
    comm, pool, made = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    config = by_id(lib, cut, rank, ranks, 60000, b'scanned')
    if lib.fsccl_comm_create(ctypes.byref(config), ctypes.byref(comm)) >= 0:
        sys.exit('half an id is taken')
    print(said(), flush=True)
    config.unique_id = ctypes.pointer(unique)
    must(lib.fsccl_comm_create(ctypes.byref(config), ctypes.byref(comm)))
    must(lib.fsccl_barrier(comm, None, None))
    must(lib.fsccl_pool_create(comm, None, ctypes.byref(pool)))
    must(lib.fsccl_pool_snapshot(pool, f'{folder}/pool-{rank}'.encode()))
    must(lib.fsccl_metrics(show, None))
    json, room = ctypes.create_string_buffer(1 << 20), 1 << 20
    must(lib.fsccl_topology_dump(json, room))
    os.write(1, json.value)
    must(lib.fsccl_explain(comm, b'all_gather', 65536, json, room))
    os.write(1, json.value)
    for form in (c.TOPOLOGY_TREE, c.TOPOLOGY_JSON):
        must(lib.fsccl_topology_describe(None, form, show, None))
    must(lib.fsccl_trace_dump(f'{folder}/dump'.encode()))
    status = lib.fsccl_barrier(comm, None, None)
    if rank == 1:
        must(status)
        os.kill(os.getpid(), signal.SIGKILL)
    # The slowest rank may learn of the death in the first barrier already.
    if status >= 0 and lib.fsccl_barrier(comm, None, None) >= 0:
        sys.exit('nobody is missed')
    print(said(), flush=True)
    must(lib.fsccl_comm_shrink(comm, None, ctypes.byref(made)))
    must(lib.fsccl_barrier(made, None, None))
    print('shrunk', flush=True)


if len(sys.argv) == 2:
    make_id()
else:
    be_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
