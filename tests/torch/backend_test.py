# SPDX-License-Identifier: Apache-2.0
"""Tests the backend besides its collectives: works and futures, memory, state of modules."""

import datetime
import threading
import weakref

import pytest
import ranks as ranks_
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

CPU = torch.device('cpu')


@pytest.fixture(scope='module')
def two():
    with ranks_.Ranks(2) as started:
        yield started


@pytest.fixture(scope='module')
def four():
    with ranks_.Ranks(4) as started:
        yield started


def backend(group=None):
    return (group or dist.group.WORLD)._get_backend(CPU)


# -----------------------------------------------------------------------------------------------
# works and futures ----


def waits_once():
    """A second wait() does not touch the result again, staged or not."""
    for output in (torch.zeros(4), torch.zeros(4, 2)[:, 0]):
        work = dist.reduce_scatter_single(output, torch.ones(8), async_op=True)
        work.wait()
        output.add_(5)
        work.wait()
        assert output.tolist() == [7.0] * 4


def waits_outside_of_inference_mode():
    """Outputs that FSCCL cannot use in place are inference tensors, and are waited for outside of
    inference mode."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with torch.inference_mode():
        output, listed, received = (torch.zeros(3, 2)[:, 0] for _ in range(3))
        works = [
            dist.reduce_scatter_single(output, torch.ones(3 * size), async_op=True),
            dist.all_gather([listed, torch.zeros(3)], torch.full((3,), rank + 1.0), async_op=True),
            dist.irecv(received, 1 - rank),
            dist.isend(torch.full((3,), 5.0), 1 - rank),
        ]
    for work in works:
        work.wait()
    assert output.eq(size).all() and listed.eq(1).all() and received.eq(5).all()
    # Elsewhere the version of an output still says that it has changed.
    output = torch.zeros(3, 2)[:, 0]
    version = output._version
    dist.reduce_scatter_single(output, torch.ones(3 * size))
    assert output._version > version and not output.is_inference()


def futures():
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((3,), rank + 1.0)
    total = sum(range(1, size + 1))
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    assert future.then(lambda done: done.value()[0].sum().item()).wait() == 3.0 * total
    assert work.get_future().value()[0].tolist() == [total] * 3
    # A callback of a future may itself wait for another future.
    first = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    nested = first.then(
        lambda done: dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]
    )
    assert nested.wait().tolist() == [size * size] * 2
    # Many futures are in flight, and are waited for in another order.
    works = [
        dist.all_reduce(torch.full((4,), float(i)), async_op=True).get_future() for i in range(100)
    ]
    for i in reversed(range(100)):
        assert works[i].wait()[0].tolist() == [i * size] * 4
    messages = (
        [dist.isend(torch.ones(1), 1) if rank == 0 else dist.irecv(torch.zeros(1), 0)]
        if rank < 2
        else []
    )
    for work in messages:
        assert work.get_future().wait()[0].item() == 1
    dist.barrier()


def forgotten():
    """A work that nobody waits for keeps its tensors until it ends, and not much longer, although
    a receive on a channel for control messages is in flight all the time."""
    rank, control, dead = dist.get_rank(), torch.zeros(1), []
    waiting = dist.irecv(control, 1 - rank, tag=99)
    for i in range(200):
        if rank == 0:
            dist.isend(torch.full((1000,), float(i)), 1)
        else:
            received = torch.empty(1000)
            dist.recv(received, 0)
            assert received.eq(i).all()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:  # so that the works of rank 0 are in flight
        store.wait(['rank 0 is ahead'], datetime.timedelta(seconds=60))
    for i in range(200):
        if rank == 0 and i == 50:
            store.set('rank 0 is ahead', '')
        tensor = torch.ones(1000)
        weakref.finalize(tensor, dead.append, None)
        dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    for _ in range(200):
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    pending = backend()._comm.pending
    assert len(pending) <= 2 and len(dead) >= 199, (len(pending), len(dead))
    dist.send(torch.ones(1), 1 - rank, tag=99)
    waiting.wait()
    assert control.item() == 1


def threads():
    """Two threads use two groups, while a third one waits for a message."""
    rank, size = dist.get_rank(), dist.get_world_size()
    other, received = dist.new_group(), torch.zeros(1)
    waiting = threading.Thread(target=dist.recv, args=(received, (rank - 1) % size))
    waiting.start()
    errors = []

    def reduces(group):
        try:
            for i in range(300):
                tensor = torch.full((2,), float(i))
                dist.all_reduce(tensor, group=group)
                assert tensor.tolist() == [i * size] * 2
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=reduces, args=(group,)) for group in (None, other)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    dist.send(torch.ones(1), (rank + 1) % size)
    waiting.join()
    assert not errors and received.item() == 1, errors
    dist.destroy_process_group(other)


def hooks_and_order():
    before = backend()._get_sequence_number_for_group()
    dist.barrier()
    assert backend()._get_sequence_number_for_group() == before + 1
    assert backend().get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
    assert backend().name() == 'fsccl' and dist.get_backend() == 'fsccl'
    assert backend().counters()['operations'] > 0


def coalescing_of_the_device():
    """Calls of several kinds of collectives are coalesced by start_coalescing and
    end_coalescing."""
    rank, size = dist.get_rank(), dist.get_world_size()
    a, b = torch.ones(3), torch.full((2,), float(rank))
    gathered = torch.empty(2 * size)
    with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
        dist.broadcast(b, 1)
        dist.all_gather(list(gathered.split(2)), torch.full((2,), float(rank)))
        dist.all_to_all_single(torch.empty(size), torch.ones(size))
        dist.group.WORLD.allreduce_coalesced(
            [torch.ones(2), torch.ones(3)], dist.AllreduceCoalescedOptions()
        )
    assert len(manager.works[0].get_future().wait()) == 1 + size + 1 + 2
    manager.wait()
    assert b.tolist() == [1, 1] and gathered.tolist() == [
        peer for peer in range(size) for _ in range(2)
    ]
    dist.all_reduce(a)
    assert a.tolist() == [size] * 3


def coalescing_that_fails():
    """A block of coalesced operations ends with the error of one of them, and keeps no later
    work."""
    rank, peer, tensor = dist.get_rank(), 1 - dist.get_rank(), torch.ones(2)
    operations = [
        dist.P2POp(dist.isend, tensor, peer),
        dist.P2POp(dist.irecv, torch.zeros(2, dtype=torch.uint8).view(torch.bits8), peer),
    ]
    text, _ = ranks_.fails(lambda: dist.batch_isend_irecv(operations), TypeError)
    assert 'bits8 cannot be sent' in text, text
    dead = []
    for number in range(5):
        sent = torch.full((2,), float(number))
        weakref.finalize(sent, dead.append, number)
        dist.broadcast(sent, 0)
    del sent
    assert dead == [0, 1, 2, 3, 4], dead
    received = torch.zeros(2)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, peer)]):
        work.wait()
    assert received.tolist() == [1, 1], rank
    dist.barrier()


def counted():
    import fsccl_torch

    before = fsccl_torch.stats().get('broadcast', 0), fsccl_torch.stats().get('broadcast_bytes', 0)
    dist.broadcast(torch.ones(10), 0)
    after = fsccl_torch.stats()
    assert (after['broadcast'], after['broadcast_bytes']) == (before[0] + 1, before[1] + 40)


def registered_again():
    import fsccl_torch

    fsccl_torch.register()
    fsccl_torch.register()


@pytest.mark.parametrize(
    'case',
    [
        waits_once,
        waits_outside_of_inference_mode,
        futures,
        forgotten,
        threads,
        hooks_and_order,
        coalescing_of_the_device,
        coalescing_that_fails,
        counted,
        registered_again,
    ],
    ids=lambda case: case.__name__,
)
def test_works(two, case):
    two.run(case)


# --------------------------------------------------------------------------------------------------
# memory ----


def pool_memory():
    device = backend()
    rank, size = dist.get_rank(), dist.get_world_size()
    assert device.supports_tensor_alloc(CPU)
    tensors = [
        device.allocate_tensor((17, 3), dtype=dtype, device=CPU)
        for dtype in (torch.float32, torch.bfloat16, torch.bool)
    ]
    assert [tuple(tensor.shape) for tensor in tensors] == [(17, 3)] * 3
    assert device.allocate_tensor(0, dtype=torch.float32, device=CPU).numel() == 0
    tensors[0].fill_(rank + 1)
    dist.all_reduce(tensors[0])
    assert tensors[0].eq(sum(range(1, size + 1))).all()
    live = device.memory_stats()['local_live_bytes']
    assert live > 0
    view = tensors[0][3:5].view(-1)
    tensors.clear()
    addresses = set()
    for _ in range(20):  # dropped blocks are used again
        tensor = device.allocate_tensor(1 << 16, dtype=torch.float32, device=CPU)
        addresses.add(tensor.data_ptr())
        del tensor
    assert len(addresses) < 4
    assert view.eq(sum(range(1, size + 1))).all()


def pool_outlives_group():
    group = dist.new_group()
    tensor = backend(group).allocate_tensor(1000, dtype=torch.float32, device=CPU).fill_(3)
    comm = backend(group)._comm
    dist.destroy_process_group(group)
    assert tensor.sum().item() == 3000 and comm.handle
    del tensor
    assert not comm.handle


@pytest.mark.parametrize('case', [pool_memory, pool_outlives_group], ids=lambda case: case.__name__)
def test_memory(two, case):
    two.run(case)


# --------------------------------------------------------------------------------------------------
# state ----


class Model(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.linear, self.norm = nn.Linear(5, 7), nn.BatchNorm1d(7)
        self.norm.running_mean.normal_()
        self.register_buffer('turned', torch.randn(4, 6).t())


def broadcasts():
    import fsccl_torch

    rank = dist.get_rank()
    tensors = [
        torch.full((3,), float(rank)),
        torch.full((2, 2), rank, dtype=torch.int64),
        torch.empty(0),
        torch.full((4, 3), rank).t(),
    ]
    addresses = [tensor.data_ptr() for tensor in tensors]
    fsccl_torch.broadcast_coalesced(tensors, 1)
    assert all(tensor.eq(1).all() for tensor in tensors) and addresses == [
        tensor.data_ptr() for tensor in tensors
    ]


def synchronises():
    import fsccl_torch

    model, expected = Model(dist.get_rank()), Model(1)
    assert fsccl_torch.verify_replicas(model)['linear.weight'] == [1]
    fsccl_torch.sync_module_states(model, src=1, ignore=('linear.bias',), verify=True)
    for name, tensor in expected.state_dict().items():
        if name != 'linear.bias':
            assert torch.equal(model.state_dict()[name], tensor), name
    assert list(fsccl_torch.verify_replicas(model)) == ['linear.bias']


def synchronises_shards():
    """HSDP: each rank gets its own shard from the first replica, in place."""
    import fsccl_torch
    from torch.distributed.fsdp import fully_shard

    grid = init_device_mesh('cpu', (2, 2), mesh_dim_names=('replicate', 'shard'))
    model = Model(dist.get_rank() // 2)
    fully_shard(model, mesh=grid)
    addresses = [parameter.to_local().data_ptr() for parameter in model.parameters()]
    assert fsccl_torch.verify_replicas(model)
    fsccl_torch.sync_module_states(model, verify=True)
    assert addresses == [parameter.to_local().data_ptr() for parameter in model.parameters()]
    expected = dict(Model(0).named_parameters())
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor) and torch.equal(
            parameter.full_tensor(), expected[name]
        ), name


def hook_of_ddp():
    from fsccl_torch.ddp import reduce_scatter_all_gather_hook
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    gradients = []
    for hook in (allreduce_hook, reduce_scatter_all_gather_hook):
        torch.manual_seed(3)
        layers = nn.Sequential(nn.Linear(31, 17), nn.ReLU(), nn.Linear(17, 5))
        model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.001)
        model.register_comm_hook(None, hook)
        torch.manual_seed(dist.get_rank())
        model(torch.randn(8, 31)).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients):
        assert torch.equal(one, other)


def power_sgd():
    """PowerSGD's communication hook waits for futures inside callbacks of other futures."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks

    torch.manual_seed(3)
    model = nn.parallel.DistributedDataParallel(nn.Linear(300, 200))
    model.register_comm_hook(
        hooks.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2),
        hooks.powerSGD_hook,
    )
    for step in range(4):
        model(torch.full((4, 300), dist.get_rank() + step + 1.0)).sum().backward()
    gathered = [torch.empty_like(model.module.weight.grad) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, model.module.weight.grad)
    assert all(torch.equal(one, gathered[0]) for one in gathered)


@pytest.mark.parametrize(
    'case', [broadcasts, synchronises, hook_of_ddp, power_sgd], ids=lambda case: case.__name__
)
def test_state(two, case):
    two.run(case)


def test_state_of_shards(four):
    four.run(synchronises_shards)


def custom_communication():
    """FSDP2 with its buffers in the pool gives the same parameters as without it."""
    import fsccl_torch
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if not hasattr(FSDPModule, 'set_custom_all_gather'):  # before 2.8
        text, _ = ranks_.fails(lambda: fsccl_torch.AllGather, ImportError)
        assert 'install torch 2.8 or newer' in text
        return
    results = []
    for custom in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(33, 33) for _ in range(3)))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        if custom:
            for module in (*model, model):
                module.set_custom_all_gather(fsccl_torch.AllGather())
                module.set_custom_reduce_scatter(fsccl_torch.ReduceScatter())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(3):
            torch.manual_seed(10 * step + dist.get_rank())
            model(torch.randn(4, 33)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([parameter.full_tensor() for parameter in model.parameters()])
    for one, other in zip(*results):
        assert torch.equal(one, other)


def test_custom_communication(two):
    two.run(custom_communication)


def timeouts():
    """A wait with a limit of its own gives up and can be repeated. The group's limit can be
    lowered, and ends the group. Rank 1 calls nothing until the wait of rank 0 has given up."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(['rank 0 has given up'], datetime.timedelta(seconds=60))
    tensor = torch.ones(2)
    work = dist.all_reduce(tensor, async_op=True)
    # Newer versions of torch make 0 of a limit below 1 ms, unless the Work is called directly.
    direct = backend().allreduce([torch.ones(2)], dist.AllreduceOptions())
    if rank == 0:
        text, seconds = ranks_.fails(
            lambda: work.wait(datetime.timedelta(seconds=0.3)), dist.DistBackendError
        )
        assert 'all_reduce' in text and '300 ms' in text and seconds > 0.2, (text, seconds)
        for short in (direct, backend().recv([tensor], 1, 5)):
            text, _ = ranks_.fails(
                lambda: short.wait(datetime.timedelta(microseconds=10)), dist.DistBackendError
            )
            assert 'not complete after 1 ms' in text, text
        store.set('rank 0 has given up', '')
    work.wait()
    assert tensor.tolist() == [2, 2]
    dist.barrier()
    if rank == 0:
        backend().set_timeout(datetime.timedelta(seconds=0.3))
        text, _ = ranks_.fails(lambda: dist.recv(tensor, 1), dist.DistBackendError)
        assert 'recv' in text and '300 ms' in text, text
        backend().set_timeout(datetime.timedelta(seconds=20))
    assert 'aborted by rank 0' in ranks_.fails(dist.barrier, dist.DistBackendError)[0]


def limit_of_a_blocking_call():
    """The limit that set_timeout() gave holds for all waits of a blocking call together."""
    from fsccl_torch import _capi as c

    group, waits, wait = dist.new_group(), [], c.lib.fsccl_work_wait
    store = dist.distributed_c10d._get_default_store()

    def noted(handle, milliseconds):
        waits.append(milliseconds)
        return wait(handle, milliseconds)

    if dist.get_rank() == 0:
        backend(group).set_timeout(datetime.timedelta(seconds=0.6))
        c.lib.fsccl_work_wait = noted
        text, _ = ranks_.fails(
            lambda: dist.all_reduce(torch.ones(1), group=group), dist.DistBackendError
        )
        c.lib.fsccl_work_wait = wait
        assert '600 ms' in text and 500 < sum(waits) <= 600, (text, waits)
        store.set('the blocking call is over', '')
    store.wait(['the blocking call is over'], datetime.timedelta(seconds=60))


def test_limit_of_a_blocking_call(two):
    two.run(limit_of_a_blocking_call)


def test_timeouts():
    with ranks_.Ranks(2) as started:
        started.run(timeouts, survivors=[0, 1])
