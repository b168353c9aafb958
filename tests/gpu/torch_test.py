# SPDX-License-Identifier: Apache-2.0
"""Tests fsccl_torch on a GPU that all ranks share: FSDP2 of a small Llama compared with torch's own
FSDP2, collectives and their streams, and memory. With TEST_ON_HOST=1 only the training runs, in the
host's memory, to check this file on a machine without a GPU.

NCCL takes each rank for a host of its own (NCCL_HOSTID), because it refuses two ranks of a host on
one GPU."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ranks as ranks_
import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / 'tests/tools'), str(ROOT / 'tests/gpu')]
from llama import Llama, batch, loss_of  # noqa: E402

ON_HOST = os.environ.get('TEST_ON_HOST') == '1'
GPU = torch.device('cpu') if ON_HOST else torch.device('cuda', 0)
STOCK = 'gloo' if ON_HOST else 'nccl'
NAME = 'cpu:fsccl,cuda:fsccl'
NCCL = {
    'NCCL_MULTI_RANK_GPU_ENABLE': '1',
    'NCCL_NET': 'Socket',
    'NCCL_SOCKET_IFNAME': 'lo',
    'NCCL_MAX_CTAS': '2',
    'CUBLAS_WORKSPACE_CONFIG': ':4096:8',
}
on_gpu = pytest.mark.skipif(ON_HOST, reason='it is about memory of a GPU')


def a_host_of_its_own():
    os.environ['NCCL_HOSTID'] = f'host{dist.get_rank()}'


@pytest.fixture(scope='module', params=[2, 1])
def group(request):
    with ranks_.Ranks(request.param, NAME, timeout=60, **NCCL) as started:
        started.run(a_host_of_its_own)
        yield started


@pytest.fixture(scope='module')
def two():
    with ranks_.Ranks(2, NAME, timeout=60, **NCCL) as started:
        started.run(a_host_of_its_own)
        yield started


# --------------------------------------------------------------------------------------------------
# FSDP2 ----


def train(how, param_dtype):
    """Returns the losses of this rank by FSDP2: over torch's own backend ("stock"), over FSCCL's
    ("backend"), or by FSCCL's units ("enable")."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = (
        MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32)
        if param_dtype
        else MixedPrecisionPolicy()
    )
    if not ON_HOST:
        torch.cuda.set_device(GPU)
    stock = dist.new_group(backend=STOCK) if how == 'stock' else None
    mesh = DeviceMesh.from_group(stock or dist.group.WORLD, GPU.type)
    torch.use_deterministic_algorithms(True)
    model = Llama().to(GPU)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    import fsccl_torch.fsdp2

    before = fsccl_torch.stats()
    if how == 'enable':
        fsccl_torch.fsdp2.enable(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(8):
        words, wanted = batch(step, dist.get_rank(), GPU)
        loss = loss_of(model(words), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    carried = {name: count - before.get(name, 0) for name, count in fsccl_torch.stats().items()}
    # Checks what moved the bytes: units, collectives of the backend, or nothing of FSCCL. With one
    # rank no bytes move.
    if how == 'enable' and dist.get_world_size() > 1:
        report = fsccl_torch.fsdp2.report(model)
        assert all(group.gathers is None and group.reduces is None for group in report), str(report)
        assert carried['unshard'] > 0 and carried['reduce_grads'] > 0, carried
    elif dist.get_world_size() > 1:
        assert not carried.get('unshard'), carried
        assert any(carried.values()) == (how == 'backend'), carried
    return losses


@pytest.mark.parametrize('param_dtype', [None, torch.bfloat16])
@pytest.mark.parametrize('how', ['enable', 'backend'])
def test_fsdp2_trains_as_torch_does(group, how, param_dtype):
    stock = group.run(train, 'stock', param_dtype, limit=100)
    ours = group.run(train, how, param_dtype, limit=100)
    assert stock[0][-1] < stock[0][0] and ours == stock


# --------------------------------------------------------------------------------------------------
# collectives ----


def collectives():
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.full((1000,), rank + 1.0, device=GPU)
    total = size * (size + 1) / 2
    gathered = torch.empty(1000 * size, device=GPU)
    dist.all_gather_single(gathered, mine)
    assert gathered.view(size, -1)[:, 0].tolist() == [peer + 1.0 for peer in range(size)]
    reduced = torch.empty(1000 // size, device=GPU)
    dist.reduce_scatter_single(reduced, mine)
    assert reduced.eq(total).all()
    dist.all_reduce(mine)
    assert mine.eq(total).all()
    every_other = torch.arange(2000.0, device=GPU)[::2]
    dist.broadcast(every_other, size - 1)
    assert every_other.tolist() == list(range(0, 2000, 2))
    future = dist.all_reduce(torch.ones(8, device=GPU), async_op=True).get_future()
    assert future.wait()[0].tolist() == [size] * 8
    small = torch.full((4,), float(rank))
    dist.all_reduce(small)  # the same group carries tensors of the host
    assert small.sum().item() == 4 * sum(range(size))


def race():
    """A collective runs between two long pieces of work on other streams. It must read what was
    written before, every time."""
    size, here, there = dist.get_world_size(), torch.cuda.Stream(GPU), torch.cuda.Stream(GPU)
    wrong = torch.zeros((), device=GPU)
    busy = torch.rand(2048, 2048, device=GPU)
    for turn in range(40):
        with torch.cuda.stream(here):
            for _ in range(3):
                busy = busy @ busy.softmax(-1)
            tensor = torch.full((1 << 18,), float(turn), device=GPU)
            work = dist.all_reduce(tensor, async_op=True)
        with torch.cuda.stream(there):
            work.wait()
            wrong += tensor.ne(turn * size).sum()
        here.wait_stream(there)
        del tensor  # so the next turn uses its memory
    torch.cuda.synchronize()
    assert wrong.item() == 0, wrong.item()


def captured():
    """A collective in a capture becomes a part of the graph, or is refused with an error that says
    what to do. It is never left out silently."""
    tensor, graph = torch.ones(64, device=GPU), torch.cuda.CUDAGraph()
    dist.all_reduce(tensor)
    tensor.fill_(1)
    try:
        with torch.cuda.graph(graph):
            dist.all_reduce(tensor)
    except Exception as error:
        assert 'captur' in str(error).lower(), error
        return str(error)
    graph.replay()
    torch.cuda.synchronize()
    assert tensor.eq(dist.get_world_size()).all()
    return None


def pool_tensors():
    device = dist.group.WORLD._get_backend(GPU)
    first = device.allocate_tensor(1 << 20, dtype=torch.bfloat16, device=GPU)
    first.fill_(dist.get_rank() + 1)
    dist.all_reduce(first)
    assert first.eq(sum(range(1, dist.get_world_size() + 1))).all()
    address = first.data_ptr()
    del first
    gc.collect()
    second = device.allocate_tensor(1 << 20, dtype=torch.bfloat16, device=GPU)
    assert second.data_ptr() == address


@on_gpu
@pytest.mark.parametrize(
    'case', [collectives, race, captured, pool_tensors], ids=lambda case: case.__name__
)
def test_two_ranks(two, case):
    two.run(case, limit=120)


# --------------------------------------------------------------------------------------------------
# memory ----


@on_gpu
def test_mem_pool():
    """torch allocates in the arena of a pool. The program does what fsccl_torch.mem_pool() does,
    but works with any torch."""
    program = f"""
import ctypes, os, sys, torch
sys.path.insert(0, {str(ROOT / 'tests/gpu')!r})
from unit_training import c, made
comm = made(c.lib.fsccl_comm_create, None)
pool = made(c.lib.fsccl_pool_create, comm, ctypes.byref(c.PoolConfig(memory=c.MEMORY_CUDA, device=0, record=1)))
source = c.Allocator(size=ctypes.sizeof(c.Allocator), abi=1)
c.check(c.lib.fsccl_pool_allocator(pool, ctypes.byref(source)))
c.check(c.lib.fsccl_torch_use(0, ctypes.byref(source)))
allocator = torch.cuda.memory.CUDAPluggableAllocator(str(c.path()), "fsccl_torch_malloc", "fsccl_torch_free")
memory = torch.cuda.MemPool(allocator.allocator())
def live():
    stats = c.PoolStats()
    c.check(c.lib.fsccl_pool_stats(pool, ctypes.byref(stats)))
    return stats.local_live_bytes
before = live()
with torch.cuda.use_mem_pool(memory):
    a = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
assert live() - before >= a.nbytes, (before, live())
assert (a * 2).sum().item() == float((1 << 20) * ((1 << 20) - 1))
outside = torch.empty(1 << 22, device="cuda")
during = live()
del a
memory = None
torch.cuda.empty_cache()
assert live() == before, (before, during, live())
print("good")
"""
    env = {
        **os.environ,
        'RANK': '0',
        'WORLD_SIZE': '1',
        'LOCAL_RANK': '0',
        'LOCAL_WORLD_SIZE': '1',
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': '20360',
    }
    done = subprocess.run(
        [sys.executable, '-c', program],
        capture_output=True,
        text=True,
        env=env,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0 and 'good' in done.stdout, done.stdout + done.stderr


def replayed(records):
    """Returns torch.cuda.memory_reserved after the allocations of a trace. This function is the
    program of a new process."""
    streams, blocks, events = {}, {}, {}
    for record in records:
        stream = (
            streams.setdefault(record['stream'], torch.cuda.Stream())
            if 'stream' in record
            else None
        )
        if record['op'] == 'alloc':
            with torch.cuda.stream(stream):
                blocks[record['id']] = torch.empty(
                    record['bytes'], dtype=torch.uint8, device='cuda'
                )
        elif record['op'] == 'free':
            del blocks[record['id']]
        elif record['op'] == 'event':
            events[record['id']] = stream.record_event()
        elif record['op'] == 'wait':
            stream.wait_event(events[record['event']])
    return torch.cuda.memory_reserved()


@on_gpu
@pytest.mark.parametrize('expandable', [False, True])
def test_the_simulation_of_the_caching_allocator(expandable, tmp_path):
    import fsdp_trace

    program = Path(os.environ['FSCCL_TORCH_LIBRARY']).parent / 'perf/fsccl-perf'
    if not program.exists():
        pytest.skip('fsccl-perf is not in this build')
    megabytes = 1 << 20
    models = {
        'equal': [[9 * megabytes]]
        + [[800 * 1024, 3 * megabytes, 100 * 1024]] * 12
        + [[88 * megabytes]],
        'uneven': [[(7 + 13 * i % 29) * 300_000, (3 + 5 * i % 7) * 90_000] for i in range(17)],
    }
    for name, units in models.items():
        trace = tmp_path / f'{name}.jsonl'
        trace.write_text(fsdp_trace.make(name, units, 'copies', 1), encoding='utf-8')
        done = subprocess.run(
            [program, 'pool', '--json', '--steps', '3', trace],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        rows = {row['allocator']: row for row in map(json.loads, done.stdout.splitlines())}
        wanted = rows['torch-expand' if expandable else 'torch-caching']['reserved']
        folders = [str(ROOT / 'tests/gpu'), str(ROOT / 'tests/torch')]
        code = (
            f'import sys, json; sys.path[:0] = {folders!r}; import torch_test; '
            f'print(torch_test.replayed([json.loads(line) for line in open({str(trace)!r})]))'
        )
        env = {**os.environ, 'PYTORCH_CUDA_ALLOC_CONF': f'expandable_segments:{expandable}'}
        done = subprocess.run(
            [sys.executable, '-c', code],
            capture_output=True,
            text=True,
            env=env,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        reserved = int(done.stdout.split()[-1])
        assert reserved == wanted, f'{name}: torch {torch.__version__}'
