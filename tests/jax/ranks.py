# SPDX-License-Identifier: Apache-2.0
"""Ranks for tests: one Python program in several processes, each of which JAX knows by its
number."""

import mmap
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'perf'))
from free_port import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / 'examples/jax/fsdp_train.py'
# The death of a rank ends its connections, which takes milliseconds; heartbeats need seconds.
SOON_S = 0.5

# Programs of ranks begin with this text. Only the tests use the variables RANK and RANKS, and FSCCL
# does not read them.
HEAD = """
import os, sys, time
import numpy as np
{use}
import jax, jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
rank, ranks = int(os.environ["RANK_OF_TEST"]), int(os.environ["RANKS_OF_TEST"])
{before}
jax.distributed.initialize(os.environ["COORDINATOR_OF_TEST"], ranks, rank{initialize})
mesh = Mesh(jax.devices(), ("ranks",))
def split(array):
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, P("ranks")), lambda index: array[index])
def shard_map(function, out=P("ranks")):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("ranks"), out_specs=out, check_vma=False))
def leave(status):
    # JAX ends every process once process 0 has ended, so process 0 waits until the others have.
    if rank == 0: os.read(int(os.environ["END_OF_OTHERS_OF_TEST"]), 1)
    os._exit(status)
"""
USE = 'import fsccl_jax\nfsccl_jax.use()'

# A program that sums until it gets an error, which it prints with the time. `then` is a statement
# that it executes after the first sum.
SUM_UNTIL_ERROR = """
    total = shard_map(lambda x: lax.psum(x, "ranks"))
    x = split(np.ones(ranks << 15, np.float32))
    total(x).block_until_ready()
    print("ready", flush=True)
    {then}
    try:
        while True:
            total(x).block_until_ready()
    except Exception as error:
        print("caught", time.time(), error, flush=True)
        leave(3)
"""
LAST_RANK_SLEEPS = 'if rank == ranks - 1: time.sleep(100)'


# Programs that ask in which memory a result lies begin with this text, too.
ASKED_FOR_HUGE_PAGES = """
SIZE = 3 << 23  # so that malloc takes each result from the kernel: memory that is there is left alone
def is_asked_for_huge_pages(result):
    data = result.block_until_ready().addressable_shards[0].data
    middle, inside = data.unsafe_buffer_pointer() + data.nbytes // 2, False
    for line in open("/proc/self/smaps"):
        if line.startswith("VmFlags:") and inside:
            return "hg" in line.split()
        first, dash, rest = line.split()[0].partition("-")
        if dash:
            inside = int(first, 16) <= middle < int(rest, 16)
"""


# The environment of such programs. Meson sets this variable so that malloc writes to all memory
# that it gives. Then the memory would exist before the program asks for huge pages.
FRESH_MEMORY = {'MALLOC_PERTURB_': '0'}


def gives_huge_pages():
    """Returns true if this system has huge pages for memory that asks for them."""
    with mmap.mmap(-1, 4 << 20) as memory:
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
            return True
        except OSError:
            return False


def free_address():
    return f'127.0.0.1:{free_port()}'


def sees_threads_end():
    """Returns true if this system tells one process that a thread of another has ended."""
    try:
        os.close(os.pidfd_open(threading.get_native_id(), os.O_EXCL))  # PIDFD_THREAD
        return True
    except OSError:
        return False


class Job:
    """The ranks of one program; `text` follows HEAD. `places` has, for each rank, the words that
    begin a command in its place, and variables that it needs there."""

    def __init__(
        self,
        text,
        ranks=2,
        use=USE,
        before='',
        initialize='',
        address=None,
        places=None,
        **environment,
    ):
        self._folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self._folder.name)
        (folder / 'program.py').write_text(
            HEAD.format(use=use, before=before, initialize=initialize) + textwrap.dedent(text)
        )
        address = address or free_address()
        self.outputs = [folder / f'output{rank}' for rank in range(ranks)]
        self.processes = []
        end_of_others, others = os.pipe()  # ends when all other processes have ended
        for rank, (enter, own) in enumerate(places or [([], {})] * ranks):
            variables = {
                **os.environ,
                'RANK_OF_TEST': str(rank),
                'RANKS_OF_TEST': str(ranks),
                'COORDINATOR_OF_TEST': address,
                'END_OF_OTHERS_OF_TEST': str(end_of_others),
                **environment,
                **own,
            }
            with open(self.outputs[rank], 'w') as output:
                self.processes.append(
                    subprocess.Popen(
                        [*enter, sys.executable, '-u', str(folder / 'program.py')],
                        env=variables,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        pass_fds=[others if rank else end_of_others],
                    )
                )
        os.close(end_of_others)
        os.close(others)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        self._folder.cleanup()

    def kill(self, rank):
        """Kills a rank, and returns the time from which the others can know of its death. Before
        Linux 6.9 that is when the process has ended, which takes a while, because the system frees
        its memory first."""
        begin = time.time()
        self.processes[rank].kill()
        self.processes[rank].wait()
        return begin if sees_threads_end() else time.time()

    def output(self, rank):
        return self.outputs[rank].read_text(errors='replace')

    def wait(self, limit=120, who=None):
        """Returns (exit statuses, outputs) of the ranks, and fails if a rank has not ended at the
        limit."""
        until = time.monotonic() + limit
        ranks = range(len(self.processes)) if who is None else who
        for rank in ranks:
            try:
                self.processes[rank].wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(
                    f'rank {rank} is not over after {limit} s:\n{self.output(rank)}'
                ) from None
        return [self.processes[rank].returncode for rank in ranks], [
            self.output(rank) for rank in ranks
        ]

    def wait_for(self, rank, text, limit=60):
        """Waits until a rank has printed `text`."""
        until = time.monotonic() + limit
        while text not in self.output(rank):
            living = time.monotonic() < until and self.processes[rank].poll() is None
            assert living, f'no {text!r} from rank {rank}:\n{self.output(rank)}'
            time.sleep(0.02)


def run(text, ranks=2, limit=120, **options):
    """Returns the outputs of ranks that all end well."""
    with Job(text, ranks, **options) as job:
        statuses, outputs = job.wait(limit)
        assert statuses == [0] * ranks, f'{statuses}\n' + '\n'.join(outputs)
        return outputs


def losses(outputs):
    """Returns the hexadecimal numbers that all ranks have printed alike behind "losses"."""
    lines = [line for output in outputs for line in output.splitlines() if 'losses' in line]
    assert len(lines) == len(outputs) and len(set(lines)) == 1, outputs
    return [float.fromhex(word) for word in lines[0].split()[1:]]


def python(text, limit=60, **environment):
    """Returns (exit status, output) of one program."""
    result = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(text)],
        env={**os.environ, **environment},
        timeout=limit,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout
