# SPDX-License-Identifier: Apache-2.0
"""Tests XLA's collectives over libfsccl_mpi.so: every operation and type that XLA has for them
gives JAX's own numbers, and FSCCL moves the bytes."""

import ctypes
import mmap
import os
import re
import subprocess
import sys

import pytest
import ranks as r
from fsccl_jax import door, libraries

OPERATIONS = """
    def everything(x):
        whole = lax.all_gather(x, "ranks", tiled=True)
        return (lax.psum(x, "ranks"), lax.pmax(x, "ranks"), lax.pmin(x, "ranks"), whole,
                lax.psum_scatter(whole, "ranks", tiled=True),
                lax.ppermute(x, "ranks", [(i, (i + 1) % ranks) for i in range(ranks)]),
                lax.all_to_all(x.reshape(ranks, -1), "ranks", 0, 0))
    jax.config.update("jax_enable_x64", True)
    for dtype in ("int8", "uint8", "int16", "int32", "int64", "uint64", "float32", "float64", "bfloat16"):
        x = split(np.random.default_rng(1).integers(0, 9, 24 * ranks).astype(dtype))
        for number, result in enumerate(shard_map(everything)(x)):
            print(dtype, number, np.asarray(result.addressable_shards[0].data).astype(float).tolist())
    for dtype in ("complex64", "complex128"):
        x = split((np.arange(4 * ranks) * (1 + 2j)).astype(dtype))
        print(dtype, np.asarray(shard_map(lambda x: lax.psum(x, "ranks"))(x).addressable_shards[0].data).tolist())
    flags = split(np.arange(ranks) == 0)
    both = shard_map(lambda x: jnp.stack([lax.pmax(x, "ranks"), lax.pmin(x, "ranks")]))
    print(both(flags).addressable_shards[0].data.tolist())
"""


def said(outputs):
    """Returns the output without the lines of Gloo and of loggers."""
    return [
        [line for line in output.splitlines() if re.match(r'\w+ \d|complex|\[\[', line)]
        for output in outputs
    ]


@pytest.mark.parametrize('count', [2, 3])
def test_every_operation_and_type_gives_jax_own_numbers(count):
    over_fsccl = said(r.run(OPERATIONS, count))
    assert len(over_fsccl[0]) == 9 * 7 + 3
    assert over_fsccl == said(r.run(OPERATIONS, count, use=''))


def test_axes_of_a_mesh_are_communicators():
    outputs = r.run(
        """
        mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("rows", "columns"))
        sharding = NamedSharding(mesh, P(("rows", "columns")))
        x = jax.make_array_from_callback((4,), sharding, lambda i: 10.0 ** np.arange(4)[i])
        def sums(x):
            return lax.psum(x, "columns"), lax.psum(x, "rows"), lax.psum(x, ("rows", "columns"))
        whole = P(("rows", "columns"))
        results = jax.jit(jax.shard_map(sums, mesh=mesh, in_specs=whole, out_specs=(whole, whole, whole)))(x)
        print("sums", [float(result.addressable_shards[0].data[0]) for result in results])
        """,
        4,
    )
    for rank, output in enumerate(outputs):
        row = [11.0, 11.0, 1100.0, 1100.0][rank]
        column = [101.0, 1010.0, 101.0, 1010.0][rank]
        assert f'sums {[row, column, 1111.0]}' in output


def test_the_bytes_are_fsccls():
    outputs = r.run("""
        gather = shard_map(lambda x: lax.all_gather(x, "ranks", tiled=True))
        x = split(np.zeros(1 << 20, np.float32))
        gather(x).block_until_ready()
        before = fsccl_jax.counters()
        gather(x).block_until_ready()
        after = fsccl_jax.counters()
        print("moved", after["operations"] - before["operations"], after["bytes_written"] - before["bytes_written"])
        """)
    for output in outputs:
        operations, written = map(int, re.search(r'moved (\d+) (\d+)', output).groups())
        assert operations == 1 and written >= 4 << 20


@pytest.mark.skipif(not r.gives_huge_pages(), reason='this kernel has no huge pages')
@pytest.mark.parametrize('setting, asked', [('', True), ('advise', True), ('off', False)])
def test_results_lie_in_huge_pages(setting, asked):
    outputs = r.run(
        r.ASKED_FOR_HUGE_PAGES
        + r.textwrap.dedent("""
        programs = (lambda x: lax.all_gather(x, "ranks", tiled=True), lambda x: lax.psum(x, "ranks"),
                    lambda x: lax.psum_scatter(x, "ranks", tiled=True))
        for program in programs:
            print("asked", is_asked_for_huge_pages(shard_map(program)(split(np.ones(ranks * SIZE, np.float32)))))
        """),
        **r.FRESH_MEMORY,
        **({'FSCCL_HUGE_PAGES': setting} if setting else {}),
    )
    for output in outputs:
        assert re.findall(r'asked (\w+)', output) == [str(asked)] * 3, output


def test_where_the_constants_of_jaxlib_begin():
    """use() looks for the door's name among the constants, not in the relocations before them."""
    import jaxlib  # pylint: disable=import-outside-toplevel

    with (
        open(os.path.join(os.path.dirname(jaxlib.__file__), 'libjax_common.so'), 'rb') as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
    ):
        first = door._constants(text)
        assert 1 << 20 < first < text.find(door.TRAMPOLINE.encode()) < first + (32 << 20)
    assert door._constants(b'no library') == 0


def test_a_program_runs_unchanged(tmp_path):
    program = tmp_path / 'unchanged.py'
    program.write_text(
        'import jax, sys\njax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))\n'
        'from jax.experimental import multihost_utils\n'
        "print('total', multihost_utils.process_allgather(jax.numpy.ones(3)).sum())\n"
        "print('mapped', 'libfsccl_mpi' in open('/proc/self/maps').read())\n"
    )
    address = r.free_address()
    processes = [
        subprocess.Popen(
            [sys.executable, '-m', 'fsccl_jax', str(program), address, str(rank)],
            text=True,
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and 'total 6.0' in output and 'mapped True' in output


def test_a_program_keeps_its_path_where_python_adds_no_folder(tmp_path):
    modules = tmp_path / 'modules'
    modules.mkdir()
    (modules / 'of_the_program.py').write_text('')
    (tmp_path / 'program.py').write_text('import of_the_program')
    command = [sys.executable, '-P', '-m', 'fsccl_jax', str(tmp_path / 'program.py')]
    path = {'PYTHONPATH': f'{modules}:{os.environ["PYTHONPATH"]}'}
    subprocess.run(command, env=os.environ | path, cwd='/', timeout=60, check=True)


def test_every_symbol_is_there_and_a_missing_function_says_its_name():
    library = ctypes.CDLL(str(libraries.path('libfsccl_mpi.so')))
    import jaxlib  # pylint: disable=import-outside-toplevel

    with open(os.path.join(os.path.dirname(jaxlib.__file__), 'libjax_common.so'), 'rb') as file:
        names = set(re.findall(rb'\0(MPIX?ABI_\w+)(?=\0)', file.read()))
    assert len(names) > 600
    assert [name for name in names if not hasattr(library, name.decode())] == []
    text, length = ctypes.create_string_buffer(1024), ctypes.c_int()
    code = library.MPIABI_File_open()
    assert code != 0 and library.MPIABI_Error_string(code, text, ctypes.byref(length)) == 0
    assert text.value.decode().startswith(
        'FSCCL: MPI_File_open is a function of MPI that libfsccl_mpi does not have'
    )
    assert length.value == len(text.value)
    # A text that is too long ends with a whole character.
    code = library.fsccl_mpi_missing(('x' + 'ü' * 700).encode())
    assert library.MPIABI_Error_string(code, text, ctypes.byref(length)) == 0
    assert text.value.decode() == 'FSCCL: x' + 'ü' * 507


MESSAGES = """
import ctypes, os
from fsccl_jax import libraries
door, world = libraries.load('libfsccl_mpi.so'), ctypes.c_void_p(1)
int8, rank = ctypes.c_size_t.in_dll(door, 'MPIABI_INT8_T'), int(os.environ['RANK'])
assert door.MPIABI_Init_thread(None, None, 2, ctypes.byref(ctypes.c_int())) == 0
def exchanged(to, text):
    received = ctypes.create_string_buffer(8)
    code = door.MPIABI_Sendrecv(text, 8, int8, to, 0, received, 8, int8, 1 - rank, 0, world, None)
    return code, received.raw
code, unchanged = exchanged(7, b'no rank7')
assert code != 0 and unchanged == bytes(8)
for text in (b'message1', b'message2'):
    assert exchanged(1 - rank, text) == (0, text)
assert unchanged == bytes(8)
assert door.MPIABI_Finalize() == 0
print('exchanged', flush=True)
"""


def test_a_wrong_peer_is_refused_before_either_message_begins():
    port = r.free_address().split(':')[1]
    processes = [started(MESSAGES, rank, port) for rank in range(2)]
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and output == 'exchanged\n', output


INITIALISES = """
import ctypes, os, sys
from fsccl_jax import libraries
door, world = libraries.load('libfsccl_mpi.so'), ctypes.c_void_p(1)
assert door.MPIABI_Init_thread(None, None, 2, ctypes.byref(ctypes.c_int())) == 0
rank, size = ctypes.c_int(), ctypes.c_int()
assert door.MPIABI_Comm_rank(world, ctypes.byref(rank)) == 0
assert door.MPIABI_Comm_size(world, ctypes.byref(size)) == 0
print('rank', rank.value, 'of', size.value, flush=True)
if sys.argv[1:] == ['barrier']:
    sleeps = lambda: int(open('/proc/self/status').read().split('\\nvoluntary_ctxt_switches:')[1].split()[0])
    before = sleeps()
    assert door.MPIABI_Barrier(world) == 0
    print('slept', sleeps() - before)
assert door.MPIABI_Finalize() == 0
print('finalized', flush=True)
"""


def started(program, rank, port, *arguments):
    place = {'RANK': rank, 'WORLD_SIZE': 2, 'MASTER_ADDR': 'localhost', 'MASTER_PORT': port}
    return subprocess.Popen(
        [sys.executable, '-c', program, *arguments],
        text=True,
        stdout=subprocess.PIPE,
        env=os.environ | {name: str(value) for name, value in place.items()},
    )


def test_mpi_init_does_not_wait_for_the_other_ranks():
    """The first operation waits for them, in one sleep and not in many. MPI_Finalize of a rank that
    has had no operation does not wait."""
    port = r.free_address().split(':')[1]
    first = started(INITIALISES, 0, port, 'barrier')
    assert first.stdout.readline() == 'rank 0 of 2\n'
    second = started('import jax\n' + INITIALISES, 1, port, 'barrier')  # it comes late
    for process in (first, second):
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and output.endswith('finalized\n'), output
        assert int(re.search(r'slept (\d+)', output)[1]) < 100, output
    output, _ = started(INITIALISES, 0, r.free_address().split(':')[1]).communicate(timeout=120)
    assert output == 'rank 0 of 2\nfinalized\n', output
