# SPDX-License-Identifier: Apache-2.0
"""Tests that messages match by their ranks and tags, in whatever order they are received, and what
a Work offers besides wait()."""

import datetime
import threading
import time
import weakref

import pytest
import ranks as ranks_
import torch
import torch.distributed as dist


@pytest.fixture(scope='module')
def two():
    with ranks_.Ranks(2) as started:
        yield started


@pytest.fixture(scope='module')
def three():
    with ranks_.Ranks(3) as started:
        yield started


def tags_in_another_order():
    """There are more messages, small and large ones, than FSCCL takes at a time, and they are
    received in reverse order."""
    count, large = 90, torch.arange(300_000.0)
    if dist.get_rank() == 0:
        works = [
            dist.isend(torch.full((number + 1,), float(number)), 1, tag=number)
            for number in range(count)
        ]
        works.append(dist.isend(large, 1, tag=count))
        for work in works:
            work.wait()
    else:
        received = torch.zeros_like(large)
        dist.recv(received, 0, tag=count)
        assert torch.equal(received, large)
        for number in reversed(range(count)):
            received = torch.zeros(number + 1)
            dist.recv(received, 0, tag=number)
            assert received.eq(number).all()
    dist.barrier()


def equal_tags_keep_their_order():
    rank = dist.get_rank()
    for tag in (0, 3):
        for number in range(20):
            if rank == 0:
                dist.isend(torch.full((2,), float(number)), 1, tag=tag)
    if rank == 1:
        for tag in (3, 0):
            for number in range(20):
                received = torch.zeros(2)
                dist.recv(received, 0, tag=tag)
                assert received.eq(number).all()
    dist.barrier()


def sent_tensors_die():
    """A tensor that was sent dies with the program's references to it and to its work."""
    rank, dead = dist.get_rank(), []
    for number in range(5):
        if rank == 0:
            tensor = torch.full((3,), float(number))
            weakref.finalize(tensor, dead.append, number)
            dist.send(tensor, 1, tag=number)
            work = dist.isend(tensor, 1, tag=number)
            work.wait()
            del tensor, work
        else:
            dist.recv(torch.zeros(3), 0, tag=number)
            dist.recv(torch.zeros(3), 0, tag=number)
    assert dead == ([0, 1, 2, 3, 4] if rank == 0 else [])
    dist.barrier()


def both_send_first():
    """Each rank waits for its own large send before it receives the other rank's."""
    rank = dist.get_rank()
    received = torch.zeros(400_000, 2)[:, 0]
    work = dist.irecv(received, 1 - rank, tag=5)
    dist.send(torch.full((400_000,), float(rank)), 1 - rank, tag=5)
    work.wait()
    assert received.eq(1 - rank).all() and work.is_completed() and work.is_success()
    dist.barrier()


def kinds_of_tensors():
    rank = dist.get_rank()
    for tensor in (
        torch.tensor(3.0),
        torch.empty(0),
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor([1 + 2j]),
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.bfloat16),
    ):
        received = torch.zeros_like(tensor)
        works = [dist.isend(tensor, 1 - rank, tag=9), dist.irecv(received, 1 - rank, tag=9)]
        for work in works:
            work.wait()
        assert torch.equal(received, tensor)
    dist.barrier()


def into_a_parameter():
    """A part of a parameter receives a message that came before the receive, and one that came
    after it."""
    rank, parameter = dist.get_rank(), torch.nn.Parameter(torch.zeros(5, 2))
    dist.isend(torch.full((5,), 1.0), 1 - rank, tag=1)
    dist.isend(torch.full((5,), 2.0), 1 - rank, tag=2)
    received = torch.zeros(5)
    dist.recv(received, 1 - rank, tag=2)  # so the message with tag 1 is there
    dist.recv(parameter[:, 0], 1 - rank, tag=1)
    work = dist.irecv(parameter[:, 1], 1 - rank, tag=3)
    dist.send(received, 1 - rank, tag=3)
    work.wait()
    assert parameter.tolist() == [[1, 2]] * 5
    dist.barrier()


def to_oneself():
    rank = dist.get_rank()
    received = torch.zeros(3, 2)[:, 0]
    sent = torch.full((3,), 7.0 + rank)
    works = [dist.isend(sent, rank, tag=3)]
    sent.zero_()
    works.append(dist.irecv(received, rank, tag=3))
    for work in works:
        work.wait()
    assert received.eq(7 + rank).all()
    work = dist.irecv(received, rank)
    assert not work.is_completed()
    dist.isend(torch.full((3,), 9.0), rank).wait()
    assert work.is_completed() and work.get_future().wait()[0].eq(9).all()


def many_at_once():
    rank = dist.get_rank()
    received = [torch.zeros(4) for _ in range(50)]
    operations = [
        dist.P2POp(dist.isend, torch.full((4,), 100.0 * rank + number), 1 - rank)
        for number in range(50)
    ]
    operations += [dist.P2POp(dist.irecv, tensor, 1 - rank) for tensor in received]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert [tensor[0].item() for tensor in received] == [
        100 * (1 - rank) + number for number in range(50)
    ]


def futures_of_messages():
    rank = dist.get_rank()
    received = torch.zeros(2)
    future = (
        dist.irecv(received, 1 - rank).get_future().then(lambda done: done.value()[0].sum().item())
    )
    dist.send(torch.full((2,), rank + 1.0), 1 - rank)
    assert future.wait() == 2 * (2 - rank)
    dist.barrier()


def completes():
    """A program may call is_completed() instead of waiting."""
    work = dist.all_reduce(torch.ones(3), async_op=True)
    end = time.monotonic() + 20
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.001)
    assert work.is_completed() and work.is_success()
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert work.is_completed() and tensor.tolist() == [2.0] * 3
    assert dist.barrier(async_op=True).wait()


@pytest.mark.parametrize(
    'case',
    [
        tags_in_another_order,
        equal_tags_keep_their_order,
        sent_tensors_die,
        both_send_first,
        kinds_of_tensors,
        into_a_parameter,
        to_oneself,
        many_at_once,
        futures_of_messages,
        completes,
    ],
    ids=lambda case: case.__name__,
)
def test_messages(two, case):
    two.run(case)


def from_any_rank():
    rank = dist.get_rank()
    if rank > 0:
        for number in range(5):
            dist.send(torch.full((2,), 10.0 * rank + number), 0, tag=4)
        dist.send(torch.full((100_000,), float(rank)), 0, tag=6)
    else:
        found = []
        for _ in range(10):
            received = torch.zeros(2)
            source = dist.recv(received, tag=4)
            found.append((source, received[0].item()))
        for source in (1, 2):
            assert [value for peer, value in found if peer == source] == [
                10 * source + number for number in range(5)
            ]
        large = torch.zeros(100_000)
        sources = [dist.recv(large, tag=6), dist.recv(large, tag=6)]
        assert sorted(sources) == [1, 2] and large.eq(sources[1]).all()
    dist.barrier()


def from_any_rank_while_sending():
    """Each rank sends to the next rank, and waits for the send before it receives from any rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.zeros(200_000)
    work = dist.irecv(received)
    dist.send(torch.full((200_000,), float(rank)), (rank + 1) % size)
    work.wait()
    assert received.eq((rank - 1) % size).all() and work._source_rank() == (rank - 1) % size
    dist.barrier()


class Noted:
    """A lock that says when it has been taken."""

    def __init__(self, lock):
        self.lock, self.taken = lock, threading.Event()

    def __enter__(self):
        self.lock.acquire()
        self.taken.set()

    def __exit__(self, *_):
        self.lock.release()


def from_any_rank_beside_collectives():
    """More collectives are in flight than FSCCL takes at a time, so the thread that submits the
    next one waits in FSCCL. A message that the other ranks send before their collectives arrives
    all the same. The thread that looks for it begins when the other one waits."""
    backend, rank = dist.group.WORLD._get_backend(torch.device('cpu')), dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    tensors, received = [torch.ones(8) for _ in range(94)], torch.zeros(1_000_000)
    if rank == 0:
        messages = backend._messages
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors[:64]]
        noted, looks = Noted(backend._comm.lock), messages._look_at_all
        messages._look_at_all = lambda: noted.taken.wait() and looks()
        works.append(dist.irecv(received))
        backend._comm.lock = noted
        store.set('rank 0 receives', '')
        works += [dist.all_reduce(tensor, async_op=True) for tensor in tensors[64:]]
        backend._comm.lock = noted.lock
        del messages._look_at_all
        for work in works:
            work.wait()
        assert received.eq(1).all()
    else:
        store.wait(['rank 0 receives'], datetime.timedelta(seconds=60))
        if rank == 1:
            dist.send(torch.ones(1_000_000), 0)
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert all(tensor.eq(dist.get_world_size()).all() for tensor in tensors)
    dist.barrier()


@pytest.mark.parametrize(
    'case',
    [from_any_rank_beside_collectives, from_any_rank, from_any_rank_while_sending],
    ids=lambda case: case.__name__,
)
def test_any_source(three, case):
    three.run(case)


def receives_that_nothing_reaches():
    """Each rank waits for a message of the next one, as on a channel for control messages, and
    destroys the group. A rank that waits longer gets an error."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(timeout=datetime.timedelta(seconds=600))
    group._get_backend(torch.device('cpu'))._comm.abort = None  # no rank needs it
    work = dist.irecv(torch.zeros(1), (rank + 1) % size, group=group, tag=7)
    dist.all_reduce(torch.ones(3), group=group, async_op=True)
    if rank == 1:
        text, _ = ranks_.fails(work.wait, dist.DistBackendError)
        assert 'rank 2 of the group destroyed the group' in text, text
    dist.destroy_process_group(group)
    dist.barrier()


def test_a_group_ends_before_its_messages(three):
    for _ in range(10):
        three.run(receives_that_nothing_reaches, limit=30)


def other_size(first_tag):
    """If the sizes of a send and a receive differ, both ranks get the error, whichever came
    first."""
    rank = dist.get_rank()
    if rank == 0:

        def sends():
            dist.isend(torch.ones(5), 1, tag=2)
            if first_tag:
                dist.isend(torch.ones(1), 1, tag=first_tag)
            dist.barrier()

        ranks_.fails(sends, dist.DistBackendError)
    else:

        def receives():
            if first_tag:
                dist.recv(torch.zeros(1), 0, tag=first_tag)
            dist.recv(torch.zeros(6), 0, tag=2)

        text, _ = ranks_.fails(receives, dist.DistBackendError)
        assert '5' in text and '6' in text, text


@pytest.mark.parametrize('first_tag', [0, 1])
def test_a_message_of_another_size(first_tag):
    with ranks_.Ranks(2) as started:
        started.run(other_size, first_tag, survivors=[0, 1])
