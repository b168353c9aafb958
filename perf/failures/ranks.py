# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes that report what they have reached, for the scripts beside this one. Rank is
one of them, inside its process; Job starts them and reads their reports; show() prints percentiles.
The file also has what such scripts need of the C header."""

import ctypes
import importlib.util
import os
import pathlib
import select
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from free_port import free_port as free_port

_BINDING = pathlib.Path(__file__).resolve().parents[2] / 'bindings/torch/fsccl_torch'


def _declarations():
    """Returns the declarations of the C headers. They are in the one file of the binding to PyTorch
    that needs no torch."""
    spec = importlib.util.spec_from_file_location('_fsccl_header', _BINDING / '_header.py')
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


c = _declarations()
TIMEOUT_S = 60
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1


def load(path):
    """Loads the library and declares its functions."""
    lib = ctypes.CDLL(str(path))
    c.declare(lib)
    return lib


def last_error(lib):
    info = c.ErrorInfo()
    lib.fsccl_last_error(ctypes.byref(info))
    return info


def by_id(lib, unique, rank, ranks, timeout_ms, name=None):
    """Returns the arguments of fsccl_comm_create()."""
    version = ctypes.c_int()
    lib.fsccl_version(ctypes.byref(version))
    return c.CommConfig(
        version=version.value,
        unique_id=ctypes.pointer(unique),
        rank=rank,
        ranks=ranks,
        timeout_ms=timeout_ms,
        name=name,
    )


class Rank:
    """One rank, in its own process."""

    def __init__(self, library, rank, ranks):
        self.lib, self.rank, self.ranks = load(library), rank, ranks
        self.comm = ctypes.c_void_p()
        self.must(self.lib.fsccl_comm_create(None, ctypes.byref(self.comm)))

    def must(self, status):
        if status < 0:
            raise SystemExit(
                f'rank {self.rank}: {self.lib.fsccl_status_string(status).decode()}: '
                f'{self.error().text.decode()}'
            )

    def barrier(self, comm):
        return self.lib.fsccl_barrier(comm, None, None)

    def gather(self, comm, value, ranks):
        mine, all_of = ctypes.c_int64(value), (ctypes.c_int64 * ranks)()
        self.must(
            self.lib.fsccl_all_gather(ctypes.byref(mine), all_of, 1, c.INT64, comm, None, None)
        )
        return list(all_of)

    def error(self):
        return last_error(self.lib)


def say(what, number):
    os.write(1, f'{what} {number}\n'.encode())


def enter(host):
    """Enters the network of a host that tests/hosts/hosts.py has made, if there is one. Otherwise
    the host is only a name. Returns the variables of its ranks."""
    made = os.environ.get('TEST_HOSTS', '')
    if not made.startswith('/'):
        return {'FSCCL_HOST_ID': f'host {host}', 'FSCCL_INSECURE': '1'}
    with open(made.split(',')[host], 'rb') as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) != 0:
            raise SystemExit(f'setns: {os.strerror(ctypes.get_errno())}')
    return {'MASTER_ADDR': '10.119.0.1', 'FSCCL_INSECURE': '1'}


class Job:
    """Ranks as processes, and the lines that they report. `settings(rank)` returns further
    variables of a rank. The ranks from `held` on begin when release() is called. With --hosts over
    1 the ranks are divided evenly among the hosts."""

    count = 0

    def __init__(self, options, ranks, body, argument, settings=lambda rank: {}, held=None):
        Job.count += 1
        self.ranks, self.processes, self.pipes, self.text = ranks, [], [], [''] * ranks
        self.gate = os.pipe()
        for rank in range(ranks):
            reader, writer = os.pipe()
            process = os.fork()
            if process == 0:
                ctypes.CDLL(None).prctl(
                    PR_SET_PDEATHSIG, signal.SIGKILL
                )  # so no rank outlives a run that fails
                os.dup2(writer, 1)
                os.close(self.gate[1])
                if held is not None and rank >= held:
                    os.read(self.gate[0], 1)
                os.closerange(3, 4096)  # also those that this process inherited
                port = (
                    20000 + (os.getppid() * 61 + Job.count) % 10000
                )  # below those that systems give to connections
                os.environ.update(
                    RANK=str(rank),
                    WORLD_SIZE=str(ranks),
                    MASTER_ADDR='127.0.0.1',
                    MASTER_PORT=str(port),
                    TORCHELASTIC_RUN_ID=f'{os.getppid()}/{Job.count}',
                    FSCCL_TIMEOUT_MS=str(TIMEOUT_S * 1000),
                )
                if options.hosts > 1:
                    os.environ.update(enter(rank * options.hosts // ranks))
                else:
                    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
                os.environ.update(settings(rank))
                try:
                    body(Rank(options.library, rank, ranks), argument)
                    while True:
                        signal.pause()  # if it ended, the others would see a death
                except SystemExit as error:
                    print(error, file=sys.stderr)
                finally:
                    os._exit(1)
            os.close(writer)
            self.processes.append(process)
            self.pipes.append(reader)
        os.close(self.gate[0])

    def release(self):
        os.close(self.gate[1])
        self.gate = None

    def expect(self, word, count=1, of=None, but=-1, seconds=TIMEOUT_S):
        """Waits until each rank, or rank `of` alone, has reported `count` lines that begin with
        `word`, and returns their numbers. Rank `but` is left out."""
        deadline = time.monotonic() + seconds
        wanted = [rank for rank in range(self.ranks) if rank != but and of in (None, rank)]
        while True:
            lines = [[line.split() for line in self.text[rank].split('\n')[:-1]] for rank in wanted]
            found = [[int(line[1]) for line in some if line[:1] == [word]] for some in lines]
            if all(len(numbers) >= count for numbers in found):
                return [number for numbers in found for number in numbers]
            ready = select.select(self.pipes, [], [], max(0, deadline - time.monotonic()))[0]
            pieces = [(self.pipes.index(pipe), os.read(pipe, 65536).decode()) for pipe in ready]
            for rank, piece in pieces:
                self.text[rank] += piece
                if not piece and rank in wanted and self.text[rank].count(word + ' ') < count:
                    raise SystemExit(f"rank {rank} ended before it said '{word}'")
            if not ready:
                raise SystemExit(f"not all ranks said '{word}' in {seconds} s")

    def kill(self, victim):
        time.sleep(0.02)  # the others sleep in their barrier
        begin = time.monotonic_ns()
        os.kill(self.processes[victim], signal.SIGKILL)
        return begin

    def end(self):
        for process in self.processes:
            os.kill(process, signal.SIGKILL)
        for process in self.processes:
            os.waitpid(process, 0)
        for pipe in self.pipes:
            os.close(pipe)
        if self.gate:
            os.close(self.gate[1])


def show(what, values_ns):
    values = sorted(value / 1e6 for value in values_ns)
    at = lambda part: values[min(len(values) - 1, int(part * len(values)))]
    print(
        f'{what}: p50 {at(0.5):.2f} ms, p99 {at(0.99):.2f} ms, most {values[-1]:.2f} ms, of '
        f'{len(values)}',
        flush=True,
    )
