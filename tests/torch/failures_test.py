# SPDX-License-Identifier: Apache-2.0
"""Tests that a failure ends in an exception that says which rank, which call and what to do.
Nothing hangs, and no interpreter dies."""

import ctypes.util
import datetime
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import ranks as ranks_
import torch
import torch.distributed as dist
from fsccl_torch.base import BACKEND
from torch import nn
from torch._C import _distributed_c10d as c10d

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'perf'))
from free_port import free_port

fails = ranks_.fails
ERROR = dist.DistBackendError
NO_TIMEOUT_S = 15  # an error that comes within this time did not wait for the group's limit of 20 s
SUCCESS = torch._C._distributed_c10d.ErrorType.SUCCESS


@pytest.fixture(scope='module')
def two():
    """Gives ranks that no test has harmed: ranks that a test harms are not used again."""
    with ranks_.Ranks(2) as started:
        yield started


def run(group, case, *arguments, survivors=(0, 1)):
    return group.run(case, *arguments, survivors=survivors)


def dies(call):
    rank = dist.get_rank()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = torch.ones(4)
    if call == 'known':  # the death is known before any call, so the error names no operation
        while dist.group.WORLD._get_backend(tensor.device).get_error() == SUCCESS:
            time.sleep(0.001)
        text, seconds = fails(lambda: dist.all_reduce(tensor), ERROR)
        assert "all_reduce: rank 0: rank 1 of 'torch group 0' died" in text, text
    elif call == 'future':
        text, seconds = fails(
            lambda: dist.all_reduce(tensor, async_op=True).get_future().wait(), RuntimeError
        )
    elif call == 'backward':
        model = nn.Linear(2, 2)
        hooked = torch.ones(2, requires_grad=True)
        hooked.register_hook(lambda gradient: dist.all_reduce(gradient.clone()))
        text, seconds = fails(lambda: model(hooked).sum().backward(), RuntimeError)
    else:
        calls = {
            'all_reduce': lambda: dist.all_reduce(tensor),
            'recv': lambda: dist.recv(tensor, 1),
            'all_gather': lambda: dist.all_gather([tensor, tensor.clone()], torch.ones(4)),
        }
        text, seconds = fails(calls[call], ERROR)
        assert call in text
    assert 'rank 1' in text and 'died' in text and seconds < NO_TIMEOUT_S, text
    text, _ = fails(dist.barrier, ERROR)
    assert 'rank 1' in text and ': :' not in text, text
    assert (
        dist.group.WORLD._get_backend(torch.device('cpu')).get_error()
        == torch._C._distributed_c10d.ErrorType.REMOTE_ERROR
    )


@pytest.mark.parametrize('call', ['all_reduce', 'known', 'future', 'recv', 'backward'])
def test_a_rank_dies(two, call):
    run(two, dies, call, survivors=[0])


def monitored_barrier(timeout, wait_all_ranks=False):
    """Before 2.14 torch.distributed.monitored_barrier refuses groups that are not gloo's, but the
    group itself has the method."""
    (dist if BACKEND else dist.group.WORLD).monitored_barrier(
        timeout=timeout, wait_all_ranks=wait_all_ranks
    )


def monitored(late, wait_all_ranks):
    rank, limit = dist.get_rank(), datetime.timedelta(seconds=30)
    for _ in range(4):
        monitored_barrier(timeout=limit, wait_all_ranks=wait_all_ranks)
    if rank in late:
        dist.barrier()
    short = datetime.timedelta(seconds=0.3)
    text, _ = fails(
        lambda: monitored_barrier(
            timeout=short if rank == 0 else limit, wait_all_ranks=wait_all_ranks
        ),
        ERROR,
    )
    named = 'Ranks 1, 2' if wait_all_ranks else 'Rank 1'
    assert f'{named} failed to pass monitoredBarrier in 300 ms' in text, text
    assert rank == 0 or f'Rank {rank} successfully reached' in text, text
    if rank not in late:
        dist.barrier()


def monitored_with_rank_0_late():
    rank = dist.get_rank()
    if rank > 0:
        text, _ = fails(lambda: monitored_barrier(timeout=datetime.timedelta(seconds=0.3)), ERROR)
        assert 'from rank 0: no answer in 300 ms' in text, text
    dist.barrier()


@pytest.mark.parametrize('wait_all_ranks', [False, True])
def test_a_monitored_barrier_names_who_is_late(wait_all_ranks):
    with ranks_.Ranks(4) as started:
        started.run(monitored, (1, 2) if wait_all_ranks else (1,), wait_all_ranks)
        started.run(monitored_with_rank_0_late)


def other_members():
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(['told'])  # without this rank no group is made; rank 0 still serves others
    if dist.get_rank() != 2:
        dist.barrier(dist.new_group([0, 1]))
        return None
    text, _ = fails(lambda: dist.new_group([0, 2]), ERROR)
    store.set('told', 'yes')
    return text


def test_ranks_list_other_members_of_a_group():
    with ranks_.Ranks(3) as started:
        text = run(started, other_members, survivors=[0, 1, 2])[2]
        assert (
            'rank 1 (global rank 2) of group' in text and 'other ranks' in text and '[0, 2]' in text
        ), text
        assert 'same groups in the same order' in text, text


def dies_in_subgroup():
    rank = dist.get_rank()
    group = dist.new_group([1, 2])
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        text, _ = fails(lambda: dist.all_reduce(torch.ones(1), group=group), ERROR)
        assert (
            'rank 0 (global rank 1)' in text and 'rank 1 of the group is global rank 2' in text
        ), text


def test_a_rank_of_a_subgroup_dies():
    with ranks_.Ranks(3) as started:
        run(started, dies_in_subgroup, survivors=[1])


def mismatched(first, second):
    tensor = torch.ones(4)
    calls = {
        'all_reduce': lambda: dist.all_reduce(tensor),
        'all_gather': lambda: dist.all_gather_single(torch.empty(8), tensor),
        'longer': lambda: dist.all_reduce(torch.ones(5)),
        'double': lambda: dist.all_reduce(tensor.double()),
        'max': lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX),
        'broadcast': lambda: dist.broadcast(tensor, 0),
    }
    text, seconds = fails(calls[first if dist.get_rank() == 0 else second], ERROR)
    assert seconds < NO_TIMEOUT_S, seconds
    return text


@pytest.mark.parametrize(
    'second, words',
    [
        ('all_gather', ('all_reduce', 'all_gather')),
        ('longer', ('of 4 float32', 'of 5 float32')),
        ('double', ('float32', 'float64')),
        ('max', ('sum', 'max')),
    ],
)
def test_ranks_disagree(two, second, words):
    for text in run(two, mismatched, 'all_reduce', second):
        assert all(word in text for word in words) and 'rank 0' in text and 'rank 1' in text, text


def late():
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(['rank 0 has given up'], datetime.timedelta(seconds=60))
        return None
    text, seconds = fails(lambda: dist.all_reduce(torch.ones(1)), ERROR)
    store.set('rank 0 has given up', '')
    assert seconds > 1.5, seconds
    return text


def test_a_rank_is_late():
    with ranks_.Ranks(2, timeout=2) as started:
        text = run(started, late)[0]
    assert 'waits for rank(s) 1' in text and '2000 ms' in text and 'all_reduce' in text, text


def late_by_the_limit_of_the_group(call):
    """Rank 1 comes late, when rank 0 has given up. It must get the error of that, although rank 0's
    part of the operation is there."""
    rank, tensor = dist.get_rank(), torch.ones(4)
    calls = {
        'all_reduce': lambda: dist.all_reduce(tensor),
        'barrier': dist.barrier,
        'message': lambda: dist.recv(tensor, 1) if rank == 0 else dist.send(tensor, 0),
    }
    if call == 'set_timeout':
        dist.group.WORLD._get_backend(torch.device('cpu')).set_timeout(
            datetime.timedelta(seconds=0.5)
        )
        call = 'all_reduce'
    if rank == 1:
        time.sleep(5)
    text, _ = fails(calls[call], ERROR)
    again, _ = fails(lambda: dist.all_reduce(tensor), ERROR)
    return text, again


@pytest.mark.parametrize('call', ['all_reduce', 'barrier', 'message', 'set_timeout'])
def test_all_ranks_have_the_error_of_a_timeout(call):
    with ranks_.Ranks(2, timeout=3) as started:
        for text, again in run(started, late_by_the_limit_of_the_group, call):
            assert (
                '3000 ms' in text or '500 ms' in text or 'aborted by rank 0' in text
            ) and again, text


def made_again_after_an_abort(late_rank):
    """The new group uses the store of the first group."""
    rank = dist.get_rank()
    for round in range(3):
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=dist.new_group())
        assert tensor.tolist() == [2, 2]
        dist.distributed_c10d._abort_process_group()
        if rank == late_rank:
            time.sleep(0.5)
        store = made_again_after_an_abort.store if round else _store_of(rank)
        dist.init_process_group(
            'fsccl', store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=20)
        )
        dist.all_reduce(tensor)
        assert tensor.tolist() == [4, 4]


def _store_of(rank):
    made_again_after_an_abort.store = dist.TCPStore(
        '127.0.0.1', int(os.environ['PORT_OF_TEST']), 2, rank == 0
    )
    return made_again_after_an_abort.store


@pytest.mark.parametrize('late_rank', [0, 1])
def test_a_group_is_made_again_after_an_abort(late_rank):
    with ranks_.Ranks(2, PORT_OF_TEST=str(free_port())) as started:
        run(started, made_again_after_an_abort, late_rank)


def aborted():
    tensor = torch.ones(1)
    if dist.get_rank() == 0:
        threading.Timer(0.5, dist.group.WORLD._get_backend(torch.device('cpu')).abort).start()
    future = dist.all_reduce(tensor, async_op=True).get_future() if dist.get_rank() == 0 else None
    text, seconds = fails(lambda: dist.recv(tensor, 1 - dist.get_rank()), ERROR)
    assert 'aborted by rank 0' in text and seconds < NO_TIMEOUT_S, text
    if future:
        assert 'aborted' in fails(future.wait, RuntimeError)[0]
    assert 'aborted' in fails(dist.barrier, ERROR)[0]


def test_abort(two):
    run(two, aborted)


def sparse_calls(backend):
    """Calls with a tensor of a layout that FSCCL does not carry."""
    sparse, plain = torch.eye(2).to_sparse_csr(), torch.ones(2, 2)
    return [
        lambda: backend.allreduce([sparse], c10d.AllreduceOptions()),
        lambda: backend.broadcast([sparse], c10d.BroadcastOptions()),
        lambda: backend.allgather([[plain, plain]], [sparse], c10d.AllgatherOptions()),
        lambda: backend.allgather([[sparse, sparse]], [plain], c10d.AllgatherOptions()),
        lambda: backend.alltoall([plain, plain], [sparse, sparse], c10d.AllToAllOptions()),
        lambda: backend.scatter([sparse], [[plain, plain]], c10d.ScatterOptions()),
    ]


def packed_calls():
    """Reductions of pairs of 4-bit numbers, which torch cannot convert."""
    if not hasattr(torch, 'float4_e2m1fn_x2'):  # before 2.8
        return []
    packed = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    return [
        lambda: dist.all_reduce(packed),
        lambda: dist.reduce_scatter_single(packed[:2].clone(), packed),
    ]


def refused():
    """A refused call does nothing, and the group works as before."""
    tensor, who = torch.ones(4), f'rank {dist.get_rank()} of group'
    backend = dist.group.WORLD._get_backend(torch.device('cpu'))
    for action, kind, words in [
        (lambda: dist.all_reduce(tensor, dist.ReduceOp.BAND), TypeError, ('all_reduce', 'BAND')),
        (
            lambda: dist.all_gather_single(torch.empty(5), tensor),
            ValueError,
            ('all_gather_single', '5 elements', '8'),
        ),
        (
            lambda: dist.reduce_scatter_single(torch.empty(3), tensor),
            ValueError,
            ('reduce_scatter_single', '4 elements'),
        ),
        (
            lambda: dist.all_gather([torch.empty(4)], tensor),
            ValueError,
            ('all_gather', '1 tensors', '2 ranks'),
        ),
        (
            lambda: dist.all_to_all_single(torch.empty(4), tensor, [1, 2], [2, 2]),
            (ValueError, RuntimeError),
            (),
        ),
        (
            lambda: dist.all_to_all_single(torch.empty(4), tensor, [-1, 5], [2, 2]),
            (ValueError, RuntimeError),
            (),
        ),
        (
            lambda: dist.all_reduce(tensor.int(), dist._make_nccl_premul_sum(2.0)),
            TypeError,
            ('PREMUL_SUM',),
        ),
        (lambda: dist.all_reduce(tensor > 0, dist.ReduceOp.AVG), TypeError, ('AVG', 'bool')),
        *((action, ValueError, ('sparse_csr',)) for action in sparse_calls(backend)),
        *((action, TypeError, ('float4_e2m1fn_x2',)) for action in packed_calls()),
        (
            lambda: backend.allreduce([torch.ones(2, device='meta')], dist.AllreduceOptions()),
            ValueError,
            ('meta', 'cpu:fsccl'),
        ),
        (
            lambda: backend.allocate_tensor(4, dtype=torch.float32, device='meta'),
            ValueError,
            ('meta',),
        ),
    ]:
        text, _ = fails(action, kind)
        assert all(word in text for word in (*words, who if words else '')), text
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2] * 4


def test_refused(two):
    two.run(refused)


def destroyed():
    group = dist.new_group()
    backend = group._get_backend(torch.device('cpu'))
    dist.destroy_process_group(group)
    text, _ = fails(lambda: backend.barrier(dist.BarrierOptions()), ERROR)
    assert 'was destroyed' in text
    backend.shutdown()
    backend.abort()
    assert backend.get_error() != torch._C._distributed_c10d.ErrorType.SUCCESS


def test_destroyed(two):
    two.run(destroyed)


def different_groups():
    rank = dist.get_rank()
    dist.distributed_c10d._world.group_count = 50
    store = dist.distributed_c10d._get_default_store()
    import datetime

    from fsccl_torch.communicator import connect

    limit = datetime.timedelta(seconds=2)
    text, _ = fails(
        lambda: connect(
            dist.PrefixStore('here', store), rank, 2, limit, 'x', [0, 1] if rank == 0 else [1, 0]
        ),
        ERROR,
    )
    return text


def meets_again():
    """Rank 0 cannot make a group, because rank 1 does not come. Both make it again with the same
    store, in which rank 1 does not find the place of the first attempt."""
    from fsccl_torch.communicator import connect

    rank, ranks = dist.get_rank(), [0, 1]
    default = dist.distributed_c10d._get_default_store()
    store = dist.PrefixStore('again', default)
    if rank == 0:
        fails(lambda: connect(store, 0, 2, datetime.timedelta(seconds=0.5), 'x', ranks), ERROR)
        assert not store.check(['fsccl/unique_id'])
        default.set('rank 0 failed', '')
    default.wait(['rank 0 failed'], datetime.timedelta(seconds=60))
    connect(store, rank, 2, datetime.timedelta(seconds=20), 'x', ranks).close()


def test_ranks_meet_again(two):
    two.run(meets_again)


def test_ranks_make_different_groups(two):
    texts = two.run(different_groups)
    assert '[1, 0]' in texts[1] and '[0, 1]' in texts[1], texts


def python(code, **environment):
    return subprocess.run(
        [sys.executable, '-c', textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_no_library(tmp_path):
    missing = python('import fsccl_torch', FSCCL_TORCH_LIBRARY=str(tmp_path / 'none.so'))
    assert (
        missing.returncode == 1
        and 'ImportError' in missing.stderr
        and 'pip install' in missing.stderr
    ), missing.stderr
    other = python(
        'import fsccl_torch', FSCCL_TORCH_LIBRARY=ctypes.util.find_library('m') or 'libm.so.6'
    )
    assert other.returncode == 1 and 'is no libfsccl' in other.stderr, other.stderr


@pytest.mark.parametrize(
    'change, wanted',
    [
        (
            'torch.__version__ = "2.6.3+cu124"',
            r'torch 2\.6\.3\+cu124 is too old: install torch 2\.7 or newer',
        ),
        (
            'torch._C._distributed_c10d.Backend = dist.ProcessGroup = Old',
            'lets Python subclass neither .*: install a release of',
        ),
    ],
)
def test_torch_that_cannot_be_used(change, wanted):
    """If torch's class cannot be subclassed in Python, torch itself says only that there is no
    constructor."""
    found = python(f"""
        import torch, torch.distributed as dist
        class Old:
            def __init__(self, *_): raise TypeError("No constructor defined!")
        {change}
        import fsccl_torch""")
    assert found.returncode == 1 and re.search(
        f'ImportError: fsccl_torch: .*{wanted}', found.stderr
    ), found.stderr


def test_torch_that_is_newer():
    found = python(
        'import torch; torch.__version__ = "2.99.0a0+git"; import fsccl_torch; '
        'print(fsccl_torch.NAME)'
    )
    assert (
        found.stdout == 'fsccl\n' and found.stderr.count('torch 2.99.0a0+git is newer than') == 1
    ), found.stderr


def test_xla_without_torch_xla():
    found = python('import sys; sys.modules["torch_xla"] = None; import fsccl_torch.xla')
    wanted = (
        'fsccl_torch.xla needs torch_xla 2.9 and torch 2.9: install them with '
        '`pip install torch==2.9.0 torch_xla==2.9.0`'
    )
    assert found.returncode == 1 and wanted in found.stderr, found.stderr


def test_exits_without_destroying(tmp_path):
    """Programs end without destroy_process_group(), with works in flight and futures that nobody
    waits for. A callback of a program runs to its end: a thread that returned to an interpreter
    which is gone would end the process."""
    code = f"""
        import sys, time, fsccl_torch, torch, torch.distributed as dist
        rank = int(sys.argv[1])
        dist.init_process_group("fsccl", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        kept = backend.allocate_tensor(100, dtype=torch.float32)
        if rank == 0:
            kept = dist.irecv(tensor, 1).get_future().then(lambda _: print("failed", time.sleep(1), flush=True))
        print("end", flush=True)
        """
    started = [
        subprocess.Popen(
            [sys.executable, '-c', textwrap.dedent(code), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process, wanted in zip(started, (['end', 'failed None'], ['end'])):
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0 and sorted(output.splitlines()) == wanted, (output, errors)
