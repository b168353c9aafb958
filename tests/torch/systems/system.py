# SPDX-License-Identifier: Apache-2.0
"""Parts that the tests of training systems share: a small model, its data, and `compare`, which
trains over gloo and over fsccl and wants equal bits.

A system is a function (rank, ranks) -> {"losses": of this rank, "parameters": whole, by name}. It
runs in one process a rank, after init_process_group. With own_group it gets the backend's name,
too, and makes the group itself, as under torchrun. With two ranks a sum has one order of its terms,
so two right backends agree bit for bit. With more ranks, and with one process that trains on the
data of all ranks, they agree closely.
"""

import datetime
import inspect
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
import torch._dynamo  # FSDP2 loads it at its first use, which would take each rank 1.5 s after a fork
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / 'perf'))
from free_port import free_port

SEED, STEPS, SEQUENCES, TOKENS = 7, 3, 2, 12
VOCABULARY, WIDTH, HEADS = 61, 24, 4  # an odd number of rows: shards are uneven
LIMIT_S = 240
# Ranks are forked, because torch is loaded already. Its autograd engine may have run before, but
# without devices, which makes that safe. A test whose engine has devices sets another context.
CONTEXT = multiprocessing.get_context('fork')
_KEPT = []


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH)
        inner = 3 * WIDTH + 1
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH)
        )

    def forward(self, x):
        heads = self.attention(self.norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.feed_forward(x)


class Model(nn.Module):
    def __init__(self, seed=SEED):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(step, rank, ranks):
    """Returns this rank's part of the step's data."""
    generator = torch.Generator().manual_seed(1000 * SEED + step)
    tokens = torch.randint(VOCABULARY, (ranks, SEQUENCES, TOKENS + 1), generator=generator)[
        rank
    ].reshape(-1, TOKENS + 1)
    return tokens[:, :-1], tokens[:, 1:]


def new_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model, tokens, targets):
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())


def train(model, optimizer, rank, ranks, steps=range(STEPS)):
    """Returns the losses of this rank. `rank` may be a slice of ranks."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, *batch(step, rank, ranks))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def result(model, losses):
    """Returns the parameters of a model, which are DTensors or whole, under the names of the plain
    model."""
    names = {
        name: name.replace('_orig_mod.', '').removeprefix('module.')
        for name, _ in model.named_parameters()
    }
    return {
        'losses': losses,
        'parameters': {
            names[name]: whole(parameter) for name, parameter in model.named_parameters()
        },
    }


def average_over_gloo():
    """Makes gloo of torch 2.7 average for ReduceOp.AVG, which FSDP2 uses. Without this it sums, or
    refuses the call."""

    def averaging(stock):
        signature = inspect.signature(stock)

        def call(*given, **named):
            bound = signature.bind(*given, **named)
            bound.apply_defaults()
            call = bound.arguments
            average = call['op'] == dist.ReduceOp.AVG
            if average:
                call.update(op=dist.ReduceOp.SUM, async_op=False)
            work = stock(*bound.args, **bound.kwargs)
            if average:  # the first argument has the result
                bound.args[0].div_(dist.get_world_size(call['group']))
            return work

        return call

    for name in ('all_reduce', 'reduce_scatter_tensor'):
        setattr(dist, name, averaging(getattr(dist, name)))
    stock = funcol.reduce_scatter_tensor

    def functional(tensor, reduceOp, scatter_dim, group, tag=''):
        summed = stock(tensor, 'sum' if reduceOp == 'avg' else reduceOp, scatter_dim, group, tag)
        return summed / dist.get_world_size() if reduceOp == 'avg' else summed

    funcol.reduce_scatter_tensor = functional


def _keep_groups_of_gloo():
    """Keeps the groups until the process ends. Gloo of torch 2.7 waits for its threads when the last
    reference to a group goes. Python's lock is held then, and a thread that is about to free a
    tensor which Python has known waits for that lock: the rank hangs in destroy_process_group()."""
    _KEPT.extend(dist.distributed_c10d._world.pg_map)


def _rank_main(system, backend, rank, ranks, folder, own_group, port):
    try:
        torch.set_num_threads(1)
        # Compiled graphs depend on the size of a rank's shard, but their names in the cache do not.
        os.environ['TORCHINDUCTOR_CACHE_DIR'] = str(folder.parent / f'inductor-{rank}')
        os.environ['TORCHINDUCTOR_COMPILE_THREADS'] = '1'
        launched = {
            'RANK': rank,
            'LOCAL_RANK': rank,
            'GROUP_RANK': 0,
            'WORLD_SIZE': ranks,
            'LOCAL_WORLD_SIZE': ranks,
            'MASTER_ADDR': '127.0.0.1',
            'MASTER_PORT': port,
            'TORCHELASTIC_RUN_ID': 'test',
        }
        os.environ.update({name: str(value) for name, value in launched.items()})
        if own_group:
            found = system(rank, ranks, backend)
        else:
            dist.init_process_group(
                backend,
                init_method=f'file://{folder}/store',
                rank=rank,
                world_size=ranks,
                timeout=datetime.timedelta(seconds=60),
            )
            if backend == 'gloo' and torch.__version__.startswith('2.7.'):
                average_over_gloo()
            found = system(rank, ranks)
            assert dist.get_backend() == backend
            if backend == 'gloo' and torch.__version__.startswith('2.7.'):
                _keep_groups_of_gloo()
            dist.destroy_process_group()
        torch.save(found, folder / f'{rank}.pt')
        assert backend != 'fsccl' or any(sys.modules['fsccl_torch'].stats().values()), (
            'nothing went through fsccl'
        )
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def run(system, backend, ranks, folder, own_group=False):
    """Runs the system on all ranks, and returns its results in rank order."""
    folder.mkdir()
    shared = (folder, own_group, free_port())
    processes = [
        CONTEXT.Process(target=_rank_main, args=(system, backend, rank, ranks, *shared))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + LIMIT_S
    while (
        any(process.is_alive() for process in processes)
        and time.monotonic() < end
        and not any(p.exitcode for p in processes)
    ):
        time.sleep(0.02)
    for process in processes:
        process.join(1)
        process.kill()
        process.join()
    codes = [process.exitcode for process in processes]
    assert codes == [0] * ranks, f'{system} over {backend}: exit codes of the ranks: {codes}'
    return [torch.load(folder / f'{rank}.pt') for rank in range(ranks)]


def compare(system, ranks=2, reference=True, own_group=False, atol=2e-5):
    """Trains over gloo and fsccl; also against one process with the data of all ranks, unless there
    is no such reference."""
    with tempfile.TemporaryDirectory() as folder:
        gloo, fsccl = (
            run(system, backend, ranks, Path(folder) / backend, own_group)
            for backend in ('gloo', 'fsccl')
        )
    tolerance = {'rtol': 0, 'atol': 0} if ranks == 2 else {'rtol': 1e-4, 'atol': atol}
    for rank in range(ranks):
        assert len(fsccl[rank]['losses']) >= STEPS and fsccl[rank]['parameters']
        torch.testing.assert_close(fsccl[rank], gloo[rank], equal_nan=False, **tolerance)
        torch.testing.assert_close(
            fsccl[rank]['parameters'], fsccl[0]['parameters'], rtol=0, atol=0
        )
    if reference:
        model = Model()
        losses = train(
            model, new_optimizer(model), slice(None), ranks, range(len(fsccl[0]['losses']))
        )
        means = torch.tensor([one['losses'] for one in fsccl]).mean(0)
        torch.testing.assert_close(means, torch.tensor(losses), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            fsccl[0]['parameters'],
            dict(model.named_parameters()),
            rtol=1e-4,
            atol=2e-5,
            check_stride=False,
        )
