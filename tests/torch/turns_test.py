# SPDX-License-Identifier: Apache-2.0
"""Tests that collectives which are issued in callbacks of futures (Future.then) come in the same
order on all ranks, whenever the callbacks run."""

import datetime
import gc
import threading
import time

import pytest
import ranks as ranks_
import torch
import torch.distributed as dist
from torch import nn


@pytest.fixture(scope='module')
def two():
    with ranks_.Ranks(2) as started:
        yield started


def late(step):
    """Sleeps on one of the two ranks, and on the other one in the next step, so that on this rank
    futures are complete before a callback is added to them."""
    if step % 2 == dist.get_rank():
        time.sleep(0.02)


def sums_of_equal_sizes():
    """All collectives have the same size, so a wrong order would be no error but a wrong sum."""
    size = dist.get_world_size()
    for step in range(20):
        results = []

        def follows(future, number):
            late(step + number)
            own = future.value()[0] + 100 * number
            second = dist.all_reduce(own, async_op=True).get_future()
            return second.then(
                lambda done: (
                    dist.all_reduce(done.value()[0] + 1000 * number, async_op=True)
                    .get_future()
                    .wait()[0]
                )
            )

        for number in range(4):
            future = dist.all_reduce(torch.full((3,), float(number)), async_op=True).get_future()
            late(step + number)
            results.append(future.then(lambda done, number=number: follows(done, number)))
        between = torch.full((3,), 7.0)
        dist.all_reduce(between)
        assert between.tolist() == [7.0 * size] * 3
        for number, result in enumerate(results):
            found = result.wait().wait()
            assert (
                found.tolist()
                == [((number * size + 100 * number) * size + 1000 * number) * size] * 3
            ), (step, number, found)


def function_waits_for_a_later_collective():
    first = dist.all_reduce(torch.ones(1), async_op=True)
    second = dist.all_reduce(torch.full((1,), 2.0), async_op=True)
    later = second.get_future()
    found = first.get_future().then(lambda done: done.value()[0].item() + later.wait()[0].item())
    assert found.wait() == 6.0


def function_fails():
    """A callback that raises an exception ends its turn, so the next collectives can run."""

    def raises(_):
        raise ValueError('on purpose')

    future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(raises)
    text, _ = ranks_.fails(future.wait, RuntimeError)
    assert 'on purpose' in text
    dist.barrier()


def power_sgd():
    """All buckets have the same size. The hook issues collectives in callbacks of the futures of
    other collectives."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks

    for seed in range(3):
        torch.manual_seed(seed)
        layers = nn.Sequential(*[nn.Linear(16, 16) for _ in range(6)])
        model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.001)
        state = hooks.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, hooks.powerSGD_hook)
        for step in range(6):
            model.zero_grad()
            late(step)
            model(torch.full((2, 16), dist.get_rank() + 1.0)).sum().backward()
        for parameter in model.parameters():
            gathered = [torch.empty_like(parameter.grad) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, parameter.grad)
            assert all(torch.equal(one, gathered[0]) for one in gathered)


def over_two_groups():
    """Each callback sums over another group than the first sum, as a sum between hosts follows one
    inside each host."""
    other = dist.new_group()
    results = []
    for number in range(6):
        late(number)
        future = dist.all_reduce(torch.full((2,), float(number)), async_op=True).get_future()

        def follows(done, number=number):
            late(number + 1)
            return (
                dist.all_reduce(done.value()[0], group=other, async_op=True).get_future().wait()[0]
            )

        results.append(future.then(follows))
    size = dist.get_world_size()
    assert [result.wait()[0].item() for result in results] == [
        number * size * size for number in range(6)
    ]
    dist.destroy_process_group(other)


def groups_in_another_order():
    """A rank uses its groups in an order that the other rank does not have, and asks for a
    future."""
    first, second = dist.new_group(), dist.new_group()
    a, b = torch.ones(2), torch.ones(2)
    if dist.get_rank() == 0:
        work = dist.all_reduce(a, group=first, async_op=True)
        future = work.get_future()
        dist.all_reduce(b, group=second)
        work.wait()
        assert future.wait()[0].tolist() == [2, 2]
    else:
        dist.all_reduce(b, group=second)
        dist.all_reduce(a, group=first)
    assert a.tolist() == b.tolist() == [2, 2]
    for group in (first, second):
        dist.destroy_process_group(group)


def thread_that_only_asks():
    """A thread that asks for futures and issues no collective keeps nothing of those that are
    over. The works are in flight when it asks."""
    from fsccl_torch import turns

    def left():
        return sum(type(one) is turns._Turn for one in gc.get_objects())

    store, found = dist.distributed_c10d._get_default_store(), []

    def asks(works):
        futures = [work.get_future() for work in works]
        store.set('futures asked for', '')
        for future in futures:
            future.wait()
        with turns._changed:
            found.append(turns._changed.wait_for(lambda: left() == 0, 10))

    if dist.get_rank() == 1:
        store.wait(['futures asked for'], datetime.timedelta(seconds=60))
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(40)]
    if dist.get_rank() == 0:
        thread = threading.Thread(target=asks, args=(works,))
        thread.start()
        thread.join()
        assert found == [True], left()
    dist.barrier()


def callback_that_needs_what_the_program_has(aborts):
    """The callback waits for a lock that the program holds while it waits for the callback."""
    limit = datetime.timedelta(seconds=60 if aborts else 1)
    group, lock = dist.new_group(timeout=limit), threading.Lock()
    store, key = dist.distributed_c10d._get_default_store(), f'the callback is there {aborts}'

    def takes_the_lock(_):
        if aborts:
            group._get_backend(torch.device('cpu')).abort()
        with lock:
            pass

    def reduces():
        dist.all_reduce(torch.ones(1), group=group)

    if dist.get_rank() == 1:
        store.wait([key], datetime.timedelta(seconds=60))
        reduces()
        store.wait([key + ': error'], datetime.timedelta(seconds=60))
        assert 'aborted by rank 0' in ranks_.fails(reduces, dist.DistBackendError)[0]
    else:
        with lock:
            future = dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future()
            after = future.then(takes_the_lock)
            store.set(key, '')
            text, _ = ranks_.fails(reduces, dist.DistBackendError)
            store.set(key + ': error', '')
        words = ('aborted',) if aborts else ('all_reduce: not issued', 'takes_the_lock() at')
        assert all(word in text for word in words), text
        after.wait()


@pytest.mark.parametrize(
    'case',
    [
        sums_of_equal_sizes,
        function_waits_for_a_later_collective,
        function_fails,
        power_sgd,
        over_two_groups,
        groups_in_another_order,
        thread_that_only_asks,
    ],
    ids=lambda case: case.__name__,
)
def test_order(two, case):
    two.run(case, limit=120)


@pytest.mark.parametrize('aborts', [False, True], ids=['late', 'aborted'])
def test_a_callback_that_needs_what_the_program_has(two, aborts):
    two.run(callback_that_needs_what_the_program_has, aborts, limit=30)
