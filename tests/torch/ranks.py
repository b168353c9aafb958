# SPDX-License-Identifier: Apache-2.0
"""Ranks for tests: processes that share one process group and run one function after another, so
that many tests pay for one start.

with Ranks(2) as ranks:
    # function(argument) in every rank; the results in rank order
    results = ranks.run(function, argument)
"""

import datetime
import importlib
import os
import signal
import tempfile
import time
import traceback
from multiprocessing import connection

import pytest
import torch
import torch._dynamo  # some ranks would load it at its first use
import torch.distributed as dist
import torch.multiprocessing as mp

# Tests call functions by the names that they have in the newest torch.
for _new, _old in (
    ('all_gather_single', 'all_gather_into_tensor'),
    ('reduce_scatter_single', 'reduce_scatter_tensor'),
):
    if not hasattr(dist, _new):
        setattr(dist, _new, getattr(dist, _old))


class Ranks:
    def __init__(self, size, backend='fsccl', timeout=20, start='fork', **environment):
        self.size, self.backend, self.timeout, self.start, self.environment = (
            size,
            backend,
            timeout,
            start,
            environment,
        )
        self.processes, self.pipes, self._folder = [], [], None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def _start(self):
        self._folder = tempfile.TemporaryDirectory()
        # Ranks are forked, because torch is loaded already (systems/system.py). A test whose own
        # process uses the library starts new programs instead ('spawn').
        context, before = mp.get_context(self.start), dict(os.environ)
        os.environ.update(self.environment)
        for rank in range(self.size):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(
                    there,
                    self._folder.name + '/store',
                    rank,
                    self.size,
                    self.backend,
                    self.timeout,
                ),
                daemon=True,
            )
            process.start()
            there.close()
            self.processes.append(process)
            self.pipes.append(here)
        os.environ.clear()
        os.environ.update(before)
        # All ranks load torch before any makes the group, because the group's timeout does not
        # allow for that: it takes a while if many ranks do it at once.
        self._collect(range(self.size), 120)
        for pipe in self.pipes:
            pipe.send(None)
        self._collect(range(self.size), 120)

    def run(self, function, *arguments, survivors=None, limit=60):
        """Returns the results of the ranks in `survivors`, or of all ranks. Ranks that are not in
        it may die. If ranks may have died, or a rank has failed, the next call starts new ranks."""
        if not self.processes:
            self._start()
        for pipe in self.pipes:
            pipe.send((function, arguments))
        results = self._collect(range(self.size) if survivors is None else survivors, limit)
        if survivors is not None:
            self.stop()
        return results

    def _collect(self, ranks, limit):
        waiting = {self.pipes[rank]: rank for rank in ranks}
        results, failures, until = {}, [], time.monotonic() + limit
        while waiting and time.monotonic() < until:
            for pipe in connection.wait(waiting, until - time.monotonic()):
                rank = waiting.pop(pipe)
                try:
                    fine, results[rank] = pipe.recv()
                except EOFError:
                    fine, results[rank] = False, 'died'
                if not fine:
                    failures.append(f'rank {rank}: {results[rank]}')
                    until = min(
                        until, time.monotonic() + 1
                    )  # the others may report the same, or wait for this one
        if failures or waiting:
            failures += [f'rank {rank}: no answer' for rank in waiting.values()]
            self.stop(patience=0)
            pytest.fail('\n'.join(failures), pytrace=False)
        return [results[rank] for rank in ranks]

    def stop(self, patience=5):
        for pipe in self.pipes:
            try:
                pipe.send(None)
            except OSError:
                pass
        for process in self.processes:
            process.join(patience)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self.pipes:
            pipe.close()
        self.processes, self.pipes = [], []
        if self._folder:
            self._folder.cleanup()
            self._folder = None


def _serve(pipe, store, rank, size, backend, timeout):
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if 'fsccl' in backend:
            importlib.import_module(
                'fsccl_torch'
            )  # if the package is not installed, torch does not load it by itself
        pipe.send((True, None))
        pipe.recv()  # waits until all ranks are ready
        dist.init_process_group(
            backend,
            init_method=f'file://{store}',
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=timeout),
        )
    except Exception:
        pipe.send((False, traceback.format_exc()))
        return
    pipe.send((True, None))
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send((True, function(*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    if dist.is_initialized():
        dist.destroy_process_group()


def fails(action, kind=Exception):
    """Returns the text of the exception that `action` raises, and the seconds until then."""
    begin = time.monotonic()
    try:
        action()
    except kind as error:
        return str(error), time.monotonic() - begin
    raise AssertionError('it did not fail')
