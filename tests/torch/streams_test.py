# SPDX-License-Identifier: Apache-2.0
"""Tests how works of a GPU are ordered, over a stand-in for torch.cuda (stand_in_streams.py).
tests/gpu/torch_test.py runs on a GPU."""

import datetime
import gc
import weakref

import pytest
import torch
from fsccl_torch import _capi, streams
from fsccl_torch.communicator import Communicator
from fsccl_torch.memory import Pool
from fsccl_torch.unit import SlotView
from stand_in_streams import StandIn


@pytest.fixture
def gpu():
    with StandIn() as stand_in:
        yield stand_in


@pytest.fixture
def comm(gpu):
    made = Communicator(0, 0, 1, datetime.timedelta(seconds=5), 'stand-in', [0])
    made.handle, made.state = 4711, lambda: _capi.OK
    yield made
    made.handle = None


def copies(gpu, source, target, seen=None):
    """Returns a stand-in for a function of libfsccl. It puts a copy on its stream, and the copy
    must not run before its operands are ready."""
    alive = weakref.ref(source.untyped_storage()), source.data_ptr(), target.data_ptr()
    kept = (
        source.detach(),
        target.detach(),
    )  # keeps the memory, so that a wrong order fails the test and does not crash it

    def function(comm, stream, work):
        assert comm == 4711 and work is None
        gpu.streams[stream].put(
            lambda: (kept[1].copy_(kept[0]), seen.append(alive[1:]) if seen is not None else None)
        )
        return _capi.OK

    return function


def test_an_operation_follows_what_its_caller_was_given(gpu, comm):
    source, target = torch.zeros(4), torch.zeros(4)
    gpu.current_stream(None).put(lambda: source.fill_(7))
    work = comm.submit('copy', copies(gpu, source, target), (), (source, target), [target])
    assert not work.is_completed() and target.sum() == 0  # the host has waited for nothing
    work.wait()
    assert target.sum() == 0  # the host has not waited here either
    comm._sides[source.device].stream.synchronize()
    assert target.tolist() == [7] * 4
    gpu.current_stream(None).synchronize()
    assert work.is_completed() and work.is_success()


def test_a_device_without_a_number_is_the_current_one(gpu):
    assert streams.with_index('cuda') == torch.device('cuda:3')
    assert [str(streams.with_index(device)) for device in ('cuda:1', 'cpu', 'meta')] == [
        'cuda:1',
        'cpu',
        'meta',
    ]


def test_only_who_waits_is_ordered(gpu, comm):
    source, target, other = torch.ones(4), torch.zeros(4), gpu.new_stream(None)
    work = comm.submit('copy', copies(gpu, source, target), (), (source, target), [target])
    other.synchronize()
    gpu.current_stream(None).synchronize()
    assert target.sum() == 0
    with gpu.on(other):
        work.wait()
    other.synchronize()
    assert target.sum() == 4


def test_a_call_that_is_not_async_has_waited(gpu, comm):
    source, target = torch.ones(4), torch.zeros(4)
    comm.submit('copy', copies(gpu, source, target), (), (source, target), [target], blocking=True)
    gpu.current_stream(None).synchronize()
    assert target.sum() == 4


def test_the_last_step_is_on_the_stream_of_the_operation(gpu, comm):
    source, staged, target, where = torch.ones(4), torch.zeros(4), torch.zeros(4), []

    def finish():
        where.append(gpu.current_stream(None))
        where[0].put(lambda: target.copy_(staged))

    work = comm.submit('copy', copies(gpu, source, staged), (), (source, staged), [target], finish)
    assert where == [comm._sides[source.device].stream] and where[0] is not gpu.current_stream(None)
    work.wait()
    gpu.current_stream(None).synchronize()
    assert target.sum() == 4


def nothing(comm, stream, work):
    return _capi.OK


def submit_held(comm):
    operand = torch.ones(1)
    gone = weakref.ref(operand)
    return comm.submit('keep', nothing, (), [operand], []), gone


def test_operands_live_until_their_stream_waits(gpu, comm):
    work, gone = submit_held(comm)
    gc.collect()
    assert gone() is not None
    with gpu.on(gpu.new_stream(None)):
        work.wait()  # not on the stream of the operands, which could still reuse them too early
    assert gone() is not None
    work.wait()
    gc.collect()
    assert gone() is None


def test_operands_live_until_the_operation_is_over_when_nobody_waits(gpu, comm):
    work, gone = submit_held(comm)
    del work
    submit_held(comm)
    gc.collect()
    assert gone() is not None
    comm._sides[torch.device('cpu')].stream.synchronize()
    submit_held(comm)
    gc.collect()
    assert gone() is None


def test_a_capture_holds_operands_until_their_stream_waits(gpu, comm):
    """The memory of a graph is given to others in the same graph."""
    gpu.graph = True
    work, operand = submit_held(comm)
    gc.collect()
    assert operand() is not None
    work.wait()
    assert operand() is None


def test_a_capture_asks_no_events(gpu, comm):
    submit_held(comm)
    gpu.graph = True
    side = comm._sides[torch.device('cpu')]
    before = list(side._held)
    work, _ = submit_held(comm)
    assert list(side._held) == before
    work.wait()


def test_a_block_that_dies_in_a_capture_is_freed_behind_it(comm, monkeypatch):
    freed, pool = [], Pool(comm, torch.device('cuda', 0))

    def free(_, block, stream):
        freed.append((block, stream))
        return _capi.ERR_NOT_AVAILABLE if len(freed) == 1 else _capi.OK

    monkeypatch.setattr(_capi.lib, 'fsccl_pool_free', free)
    pool._live = 2
    pool.dead.extend([(1, 7), (2, 8)])
    pool._free_dead()
    assert list(pool.dead) == [(1, 7)] and pool._live == 1
    pool._free_dead()
    assert not pool.dead and pool._live == 0 and freed == [(1, 7), (2, 8), (1, 7)]


def test_operations_of_a_group_keep_their_order(gpu, comm):
    a, b, c, order = torch.ones(1), torch.zeros(1), torch.zeros(1), []
    comm.submit('first', copies(gpu, a, b, order), (), (a, b), [])
    second = comm.submit('second', copies(gpu, b, c, order), (), (b, c), [])
    second.wait()
    gpu.current_stream(None).synchronize()
    assert c.item() == 1 and order == [(a.data_ptr(), b.data_ptr()), (b.data_ptr(), c.data_ptr())]


def test_a_failed_group_says_so_where_it_is_waited_for(gpu, comm):
    work, _ = submit_held(comm)
    comm.state = lambda: _capi.ERR_PEER_DEAD
    with pytest.raises(_capi.FscclError) as error:
        work.wait()
    assert error.value.code == _capi.ERR_PEER_DEAD and 'keep' in str(error.value)


def test_a_refused_call_leaves_nothing_held(gpu, comm):
    operand = torch.ones(1)
    gone = weakref.ref(operand)
    with pytest.raises(_capi.FscclError):
        comm.submit('refused', lambda *_: _capi.ERR_INVALID_ARGUMENT, (), [operand], [])
    del operand
    gc.collect()
    assert gone() is None


def test_futures_have_the_result(gpu, comm):
    source, target = torch.ones(4), torch.zeros(4)
    work = comm.submit('copy', copies(gpu, source, target), (), (source, target), [target])
    assert work.get_future() is work.get_future() and work.get_future().value()[0] is target


def test_the_end_of_a_group_waits_for_its_streams(gpu, comm):
    source, target = torch.ones(4), torch.zeros(4)
    comm.submit('copy', copies(gpu, source, target), (), (source, target), [target])
    comm.drain(torch.device('cpu'))
    assert target.sum() == 4 and not comm._sides[torch.device('cpu')]._held


def test_a_slot_view_of_device_memory(gpu):
    memory, slot = torch.arange(4.0), SlotView(torch.empty(4))
    view = slot.tensor.view(2, 2)
    slot.open(memory.data_ptr())
    assert view.tolist() == [[0, 1], [2, 3]]
    memory.add_(1)
    assert view.tolist() == [[1, 2], [3, 4]]
    slot.close()
    assert slot.tensor.untyped_storage().nbytes() == 0 and memory.tolist() == [1, 2, 3, 4]


def test_the_first_tensor_says_the_device():
    tensor = torch.ones(1)
    assert streams.device_of(None) is None and streams.device_of([]) is None
    assert (
        streams.device_of((None, [tensor])) == tensor.device
        and streams.device_of(tensor) == tensor.device
    )
