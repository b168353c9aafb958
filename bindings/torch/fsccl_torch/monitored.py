# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.monitored_barrier: a barrier that names the ranks that are missing.

It uses the group's store and not its communicator. A program calls it when something else has gone
wrong, and after a failure it must leave no operation behind that would be in the way of others.
Rank 0 waits for a mark of every rank, in the order of ranks, and then answers all of them.
"""

import time
from datetime import timedelta

from . import _capi as c

_PASSED = b'passed'


class MonitoredBarrier:
    def __init__(self, store, rank, size, who):
        self._store, self._rank, self._size, self._who, self._calls = store, rank, size, who, 0

    def __call__(self, timeout, wait_all_ranks):
        """Raises FscclError if a rank is late. On rank 0 the error names the first late rank, or
        all of them with `wait_all_ranks`."""
        self._calls += 1
        self._forget(self._calls - 2)
        self._until, self._limit_ms = (
            time.monotonic() + timeout.total_seconds(),
            int(timeout.total_seconds() * 1000),
        )
        if self._rank == 0:
            self._collect(wait_all_ranks)
        else:
            self._report()

    def _collect(self, wait_all_ranks):
        late = []
        for rank in range(1, self._size):
            if time.monotonic() >= self._until and not late:
                self._answer(f'Rank 0 timed out in monitoredBarrier after {self._limit_ms} ms', -1)
            if not self._there(f'rank {rank}'):
                late.append(rank)
                if not wait_all_ranks:
                    break
        if not late:
            self._store.set(self._key('answer'), _PASSED)
            return
        ranks = ', '.join(str(rank) for rank in late)
        self._answer(
            f'Rank{"s" * (len(late) > 1)} {ranks} failed to pass monitoredBarrier in '
            f'{self._limit_ms} ms',
            late[0],
        )

    def _answer(self, text, peer):
        self._store.set(self._key('answer'), text.encode())
        raise self._failure(f'{text}: look there for what it waits in', peer)

    def _report(self):
        self._store.set(self._key(f'rank {self._rank}'), b'here')
        answer = None
        if self._there('answer'):
            answer = self._store.get(self._key('answer'))
            if answer == _PASSED:
                return
        raise self._failure(
            f'Rank {self._rank} successfully reached monitoredBarrier, but received errors while '
            f'waiting for '
            f'send/recv from rank 0: '
            f'{answer.decode() if answer else f"no answer in {self._limit_ms} ms"}',
            0,
        )

    def _there(self, what):
        left = max(0.001, self._until - time.monotonic())
        try:
            self._store.wait([self._key(what)], timedelta(seconds=left))
        except RuntimeError:  # it is DistStoreError if the store is another process
            return self._store.check([self._key(what)])
        return True

    def _failure(self, text, peer):
        return c.FscclError(
            f'{self._who}: monitored_barrier: {text}', c.ERR_TIMEOUT, self._rank, peer
        )

    def _key(self, what, call=None):
        return f'fsccl/monitored_barrier/{call or self._calls}/{what}'

    def _forget(self, call):
        """Deletes the keys of an earlier call. A rank that comes to a barrier has read the answer
        of the one before, so all ranks have read the answer of the last but one."""
        if self._rank == 0 and call > 0:
            for what in ('answer', *(f'rank {rank}' for rank in range(1, self._size))):
                self._store.delete_key(self._key(what, call))
