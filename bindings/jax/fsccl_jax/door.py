# SPDX-License-Identifier: Apache-2.0
"""Runs XLA's own collectives over FSCCL. jaxlib carries MPItrampoline, which loads the library that
MPITRAMPOLINE_LIB names when jaxlib is loaded, and never again. Therefore use() must be called
before jax is imported. The ranks meet through JAX's coordination service, which knows the rank, the
number of ranks and the unique id. No variable of a launcher is needed."""

import ctypes
import importlib.util
import mmap
import os
import re
import struct
import sys
from ctypes import CFUNCTYPE, POINTER, c_char, c_int, c_size_t, c_void_p
from pathlib import Path

from . import libraries

LIBRARY = 'libfsccl_mpi.so'
COLLECTIVES = 'JAX_CPU_COLLECTIVES_IMPLEMENTATION'
TRAMPOLINE = 'MPITRAMPOLINE_LIB'
# With these variables MPItrampoline loads the library at another moment, in another way, or
# something else before it.
IN_THE_WAY = ('MPITRAMPOLINE_DELAY_INIT', 'MPITRAMPOLINE_PRELOAD')

_WHO = CFUNCTYPE(c_int, POINTER(c_int), POINTER(c_int), POINTER(c_char), c_size_t)
_SHARE = CFUNCTYPE(c_int, c_void_p, c_size_t)
_FINISH = CFUNCTYPE(None)
_door = None  # (library, the functions that it calls) after use()
_KEY = 'fsccl_jax/world'


def use() -> None:
    """Makes JAX's CPU collectives run over FSCCL. Call it before jax is imported; a second call
    changes nothing. It sets JAX_CPU_COLLECTIVES_IMPLEMENTATION and MPITRAMPOLINE_LIB. If it cannot
    work, it raises a RuntimeError that says what to do."""
    global _door  # pylint: disable=global-statement
    if _door is not None:
        return
    if 'jaxlib' in sys.modules:
        raise RuntimeError(
            'fsccl_jax.use() comes too late: jaxlib is imported already, and it looks for a '
            'library for its '
            'collectives only then. Call fsccl_jax.use() before the first `import jax` (also of '
            'flax, optax or '
            'another package that imports it), or start the program with `python -m fsccl_jax '
            'program.py`.'
        )
    library = str(libraries.path(LIBRARY))
    _check_variables(library)
    _check_jaxlib()
    loaded = libraries.load(LIBRARY)
    calls = _WHO(_who), _SHARE(_share), _FINISH(_finish)
    loaded.fsccl_mpi_meet(*calls[:2])
    loaded.fsccl_mpi_at_end(calls[2])
    os.environ[COLLECTIVES] = 'mpi'
    os.environ[TRAMPOLINE] = library
    _door = loaded, calls


def counters() -> dict[str, int]:
    """Returns {name: number} for what XLA's collectives have moved over FSCCL so far in this
    process (fsccl_counters_t)."""
    if _door is None:
        raise RuntimeError(
            'fsccl_jax.counters(): nothing runs over FSCCL: call fsccl_jax.use() before jax is '
            'imported'
        )
    return libraries.read_counters(_door[0].fsccl_mpi_counters)


def _check_variables(library):
    chosen = os.environ.get(COLLECTIVES)
    if chosen not in (None, '', 'mpi'):
        raise RuntimeError(
            f'fsccl_jax.use(): {COLLECTIVES} is {chosen}, which asks JAX for other collectives: '
            f'unset it, or do not '
            'call use()'
        )
    other = os.environ.get(TRAMPOLINE)
    if other and Path(other).resolve() != Path(library):
        raise RuntimeError(
            f'fsccl_jax.use(): {TRAMPOLINE} is {other}, another MPI for this process, and only one '
            f'can be used: '
            'unset it, or do not call use()'
        )
    for name in IN_THE_WAY:
        if os.environ.get(name):
            raise RuntimeError(
                f'fsccl_jax.use(): {name} is {os.environ[name]}, with which jaxlib does not load '
                f'FSCCL as it '
                'starts: unset it'
            )
    if (mode := os.environ.get('MPITRAMPOLINE_DLOPEN_MODE') or 'dlopen') != 'dlopen':
        raise RuntimeError(
            f'fsccl_jax.use(): MPITRAMPOLINE_DLOPEN_MODE is {mode}, with which jaxlib loads a '
            f'second copy of FSCCL '
            'that does not know this process: unset it'
        )


def _constants(library):
    """Returns where the constants (.rodata) of a 64-bit ELF file begin, or 0 for another file. A
    search from there skips tens of megabytes of jaxlib."""
    if len(library) < 64 or library[:5] != b'\x7fELF\x02':
        return 0
    (table,) = struct.unpack_from('<Q', library, 40)
    size, count, names = struct.unpack_from('<HHH', library, 58)
    sections = [
        struct.unpack_from('<IIQQQQ', library, table + index * size) for index in range(count)
    ]
    if names >= count:
        return 0
    texts = sections[names][4]
    for name, *_, offset, _ in sections:
        if library[texts + name : texts + name + 8] == b'.rodata\0':
            return offset
    return 0


def _check_jaxlib():
    """Checks that jaxlib has MPItrampoline. Builds of jaxlib for some systems leave it out."""
    found = importlib.util.find_spec('jaxlib')
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(
            'fsccl_jax.use(): there is no jaxlib here: install it with `pip install jax`'
        )
    folder = Path(found.submodule_search_locations[0])
    for file_name in ('libjax_common.so', '_jax.so', 'xla_extension.so'):
        if (folder / file_name).is_file():
            with (
                open(folder / file_name, 'rb') as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
            ):
                name = TRAMPOLINE.encode()
                if text.find(name, _constants(text)) >= 0 or text.find(name) >= 0:
                    return
    raise RuntimeError(
        f'fsccl_jax.use(): the jaxlib in {folder} has no MPItrampoline in it, so it cannot load '
        f'other collectives: '
        'install jaxlib 0.10 or newer from PyPI for Linux'
    )


def _devices():
    """Returns how many CPU devices this process asks JAX for."""
    import jax  # pylint: disable=import-outside-toplevel

    asked = getattr(jax.config, 'jax_num_cpu_devices', -1)
    flag = re.findall(
        r'--xla_force_host_platform_device_count=(\d+)', os.environ.get('XLA_FLAGS', '')
    )
    return asked if asked > 0 else int(flag[-1]) if flag else 1


def _state():
    from jax._src import distributed  # pylint: disable=import-outside-toplevel

    return distributed.global_state


def _who(rank, ranks, why, capacity):
    """Tells MPI_Init the rank. It is called in the thread in which JAX makes its CPU backend."""
    try:
        if (devices := _devices()) > 1:
            raise RuntimeError(
                f"this process has {devices} CPU devices, and XLA's MPI collectives support one: "
                f'start a process '
                'for each device instead of --xla_force_host_platform_device_count or '
                'jax_num_cpu_devices'
            )
        rank[0], ranks[0] = _state().process_id, _state().num_processes
        return 0
    except Exception as error:  # pylint: disable=broad-exception-caught
        if _state().process_id == 0 and _state().client is not None:
            _share(None, 0)
        text = str(error).encode()[:capacity].decode(errors='ignore').encode()
        ctypes.memmove(why, text, len(text))
        return 1


def _share(data, count):
    """Called by MPI_Init: carries the unique id from rank 0 to the other ranks. Without an id of
    rank 0 it lets them fail."""
    from . import meeting  # pylint: disable=import-outside-toplevel

    try:
        state = _state()
        if state.process_id == 0 and count == 0:
            meeting.give_up(state.client, _KEY, 'its own output says why')
        elif state.process_id == 0:
            meeting.give(state.client, _KEY, ctypes.string_at(data, count))
        else:
            given = meeting.take(state.client, _KEY, 0, _door[0])
            if len(given) != count:
                raise RuntimeError(
                    f'process 0 has sent {len(given)} bytes instead of {count}: give all processes '
                    'one version of fsccl_jax'
                )
            ctypes.memmove(data, given, count)
        return 0
    except BaseException as error:  # pylint: disable=broad-exception-caught
        # C would take an exception that leaves this function for success, also that of Ctrl-C.
        print(
            "fsccl_jax: the ranks could not meet through JAX's coordination service: "
            f'{str(error) or type(error).__name__}',
            file=sys.stderr,
            flush=True,
        )
        return 1


def _finish():
    """Called by MPI_Finalize, as the program ends: waits for the steps that JAX still runs, in
    which the other ranks may need this one. XLA runs what one thread has asked for in order.
    Therefore the computation at the end is over after all steps of this thread, also after those
    whose results the program has dropped. A step of another thread is waited for if its result
    exists."""
    import jax  # pylint: disable=import-outside-toplevel

    with jax.default_device(jax.local_devices(backend='cpu')[0]):
        for wait in (*jax.live_arrays('cpu'), jax.jit(lambda: jax.numpy.zeros(()))):
            try:
                jax.block_until_ready(wait() if callable(wait) else wait)
            except Exception:  # pylint: disable=broad-exception-caught
                pass  # a step that failed is over, too, and its results tell why
