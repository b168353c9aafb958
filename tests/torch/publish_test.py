# SPDX-License-Identifier: Apache-2.0
"""Tests that a process outside the job gets the weights of a model that is being trained, bit for
bit, for FSDP2, HSDP and models that are whole on every rank. Also tests the example."""

import gc
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fsccl_torch
import pytest
import ranks as ranks_
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

EXAMPLE = Path(__file__).resolve().parents[2] / 'examples/torch/publish_weights.py'


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(13, 31)
        self.norm = nn.BatchNorm1d(31)  # its buffers are floats and an integer
        self.last = nn.Linear(31, 13, bias=False)
        self.tied = self.last
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x)))) * self.scale


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, 'full_tensor') else tensor


def trains(kind, ticket, wire_dtype, steps):
    """Returns the weights after each step, as they are published."""
    torch.manual_seed(0)
    model = net = Net()
    if kind == 'fsdp':
        fully_shard(model, ignored_params={model.scale})
    elif kind == 'hsdp':
        mesh = init_device_mesh('cpu', (2, 2), mesh_dim_names=('replicas', 'shards'))
        fully_shard(model, mesh=mesh, ignored_params={model.scale})
    elif kind == 'wrapped':  # which adds prefixes to the names
        model = torch.compile(nn.parallel.DistributedDataParallel(model), backend='eager')
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)  # the same data, so that whole models stay equal
    states, publisher = [], None
    for step in range(steps):
        model(torch.randn(8, 13)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        publisher = fsccl_torch.publish(model, step, ticket=ticket, wire_dtype=wire_dtype)
        states.append({name: whole(value).clone() for name, value in net.state_dict().items()})
        dist.barrier()
        if step == 0 and dist.get_rank() == 0:
            assert os.stat(ticket).st_mode & 0o777 == 0o600
    trains.publisher = publisher
    return states


def ends():
    report = trains.publisher.report()
    trains.publisher.close()
    return report


@pytest.mark.parametrize('wire_dtype', [torch.bfloat16, None])
@pytest.mark.parametrize('kind, size', [('fsdp', 2), ('hsdp', 4), ('whole', 2), ('wrapped', 2)])
def test_a_process_that_is_no_rank_has_the_weights(kind, size, wire_dtype, tmp_path):
    ticket = str(tmp_path / 'ticket')
    with ranks_.Ranks(size, start='spawn') as ranks:
        states = ranks.run(trains, kind, ticket, wire_dtype, 3)[0]
        dtype = wire_dtype or torch.float32
        model = Net()
        floats = {
            name: value.to(dtype) if value.is_floating_point() else value
            for name, value in model.state_dict().items()
        }
        # The subscriber wants the weights in their own types, and then in the model's types.
        for wanted in (floats, model.state_dict()):
            with fsccl_torch.subscribe(wanted, ticket=ticket) as weights:
                assert weights.update(timeout=20) == (3, 2)
                assert weights.update() is None
                assert weights.report()['versions'] == 1
            for name, value in states[2].items():
                expected = value.to(dtype) if value.is_floating_point() else value
                assert torch.equal(wanted[name], expected.to(wanted[name].dtype)), name
        some = {'_orig_mod.norm.running_mean': torch.zeros(31), 'other': torch.zeros(31, 13)}
        with fsccl_torch.subscribe(
            some, ticket=Path(ticket).read_bytes(), names={'other': 'first.weight'}
        ) as weights:
            assert weights.update(timeout=20).label == 2
            assert torch.equal(some['other'], states[2]['first.weight'].to(dtype).float())
            reports = ranks.run(ends)
            with pytest.raises(fsccl_torch.FscclError, match='has ended it'):
                weights.update(timeout=20)
    assert [bool(report) for report in reports] == [rank < 2 for rank in range(size)]


def publishes_wrongly(ticket):
    """On rank 1 the second version fails, and on rank 0 the first ticket."""
    rank, own, linked = dist.get_rank(), dist.group.WORLD, ticket + '.there'
    model = nn.Linear(4, 6)
    model.register_buffer('phase', torch.tensor(1 - 2j))  # two ranks share its two numbers

    def publish(value, path=ticket):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
        return fsccl_torch.publish(model, ticket=path, group=own)

    if rank == 0:
        with pytest.raises(OSError, match='missing'):
            publish(1, ticket + '.missing/ticket')
        # A stranger has made the file of an obvious name, and can read what is written there.
        Path(f'{ticket}.{os.getpid()}').touch(mode=0o644)
        Path(linked).hardlink_to(f'{ticket}.{os.getpid()}')
    else:
        publish(1)
    changes = {
        'bias': lambda: model.register_parameter('bias', None),
        'weight': model.double,
        'other': lambda: model.register_buffer('other', torch.zeros(3)),
    }
    for name, change in changes.items():
        before = dict(model.named_parameters())
        if rank == 1:
            change()
            with pytest.raises(ValueError, match=f"'{name}' is not what was published first"):
                publish(2)
            model._buffers.pop('other', None)
            for key, parameter in before.items():
                model.register_parameter(key, nn.Parameter(parameter.detach().float()))
        else:
            publish(2)
    publisher = publish(3)
    if rank == 0:
        assert Path(linked).read_bytes() == b''
        assert os.stat(ticket).st_mode & 0o777 == 0o600
    publishes_wrongly.keeps = model
    return publisher.report()['version']


def publishes_again(ticket):
    model = publishes_wrongly.keeps
    fsccl_torch.publish(model).close()
    publisher = fsccl_torch.publish(model, 7, ticket=ticket, group=dist.group.WORLD)
    port = publisher.report()['port']
    socket.create_connection(('127.0.0.1', port)).close()
    publishes_wrongly.publisher = publisher
    return port


def forgets():
    """A model that nobody uses any more is published no longer."""
    port = publishes_wrongly.publisher.report()['port']
    del publishes_wrongly.publisher, publishes_wrongly.keeps
    gc.collect()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(('127.0.0.1', port))


def test_a_version_is_that_of_all_ranks_whatever_fails(tmp_path):
    ticket, wanted = str(tmp_path / 'ticket'), {'weight': torch.zeros(6, 4), 'bias': torch.zeros(6)}
    phase = {'phase': torch.tensor(0j)}
    with ranks_.Ranks(2, start='spawn') as ranks:
        assert ranks.run(publishes_wrongly, ticket) == [5, 5]
        with fsccl_torch.subscribe({**wanted, **phase}, ticket=ticket) as weights:
            assert weights.update(timeout=20).number == 5
            assert phase['phase'] == 1 - 2j
            assert all((value == 3).all() for value in wanted.values())
        ranks.run(publishes_again, ticket + '.second')
        with fsccl_torch.subscribe(wanted, ticket=ticket + '.second', timeout=20) as weights:
            assert weights.update(timeout=20) == (1, 7)
            began = time.monotonic()
            assert weights.update(timeout=-1) is None
            assert time.monotonic() - began < 15  # the subscription's own time is 20 s
        ranks.run(forgets)


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ValueError, match='a ticket has 256 bytes'):
        fsccl_torch.subscribe({'a': torch.zeros(3)}, ticket=b'short')
    for unfit, problem in {
        torch.zeros(3, device='meta'): 'on meta',
        torch.zeros(3).to_sparse(): 'torch.sparse_coo',
        torch.zeros([1] * 9): 'of 9 dimensions',
    }.items():
        with pytest.raises(ValueError, match=f"'a' is a .*{problem}"):
            fsccl_torch.subscribe({'a': unfit}, ticket=bytes(256))
    with pytest.raises(fsccl_torch.FscclError, match='not one'):
        fsccl_torch.subscribe({'a': torch.zeros(3)}, ticket=bytes(256))
    with pytest.raises(fsccl_torch.FscclError, match='neither a ticket nor an address'):
        fsccl_torch.subscribe({'a': torch.zeros(3)})


WAITS = """
import signal, sys
import fsccl_torch, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the parent does with it
state = {'scale': torch.zeros(())}
try:
    if sys.argv[1] == 'address':
        fsccl_torch.subscribe(state, address=sys.argv[2])
    weights = fsccl_torch.subscribe(state, ticket=sys.argv[2])
    print(weights.update(timeout=60).number, flush=True)
    weights.update(timeout=None)
except KeyboardInterrupt:
    print('interrupted')
"""


@pytest.fixture
def waiting():
    """Starts a process that waits for a publication, for its second version or for subscribers."""
    made = []

    def start(kind, where, program=WAITS, **variables):
        made.append(
            subprocess.Popen(
                [sys.executable, '-c', program, kind, where],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **variables},
            )
        )
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()


def test_ctrl_c_ends_the_wait_for_a_publication(tmp_path, waiting):
    secret = tmp_path / 'secret'
    secret.write_text('00112233445566778899aabbccddeeff')
    secret.chmod(0o600)
    with socket.create_server(('127.0.0.1', 0)) as nobody:
        nobody.settimeout(60)
        process = waiting(
            'address', f'127.0.0.1:{nobody.getsockname()[1]}', FSCCL_JOB_SECRET_FILE=str(secret)
        )
        with nobody.accept()[0]:
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[0] == 'interrupted\n'
            assert process.returncode == 0


class Interrupting(torch.Tensor):
    """A tensor whose first copy is interrupted."""

    interrupts = True

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.copy_ and cls.interrupts:
            cls.interrupts = False
            raise KeyboardInterrupt
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_version_whose_copies_were_interrupted_is_completed(tmp_path):
    ticket = str(tmp_path / 'ticket')
    with ranks_.Ranks(1, start='spawn') as ranks:
        expected = ranks.run(trains, 'whole', ticket, None, 1)[0][0]['first.weight']
        got = torch.zeros(13, 31).t().as_subclass(Interrupting)  # not contiguous, so it is a copy
        with fsccl_torch.subscribe({'first.weight': got}, ticket=ticket) as weights:
            with pytest.raises(KeyboardInterrupt):
                weights.update(timeout=60)
            assert not torch.equal(got.as_subclass(torch.Tensor), expected)
            assert weights.update(timeout=60) == (1, 0)
            assert torch.equal(got.as_subclass(torch.Tensor), expected)
            assert weights.update() is None
        ranks.run(ends)


def test_ctrl_c_ends_the_wait_for_a_version(tmp_path, waiting):
    ticket = str(tmp_path / 'ticket')
    with ranks_.Ranks(1, start='spawn') as ranks:
        ranks.run(trains, 'whole', ticket, None, 1)
        process = waiting('ticket', ticket)
        assert process.stdout.readline() == '1\n'
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == 'interrupted\n'
        assert process.returncode == 0
        ranks.run(ends)


CLOSES = """
import os, signal, sys, threading
import fsccl_torch, torch
import torch.distributed as dist
signal.signal(signal.SIGINT, signal.default_int_handler)
dist.init_process_group('fsccl', store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Module()
model.scale = torch.nn.Parameter(torch.ones(()))
publisher = fsccl_torch.publish(model, ticket=sys.argv[2], linger=600)
print('published', flush=True)
sys.stdin.readline()
fsccl_torch.publish(model)

def tell():
    while not publisher.closed:
        os.sched_yield()
    print('closes', flush=True)

threading.Thread(target=tell).start()
try:
    publisher.close()
except KeyboardInterrupt:
    print('interrupted')
"""


def test_ctrl_c_ends_the_wait_for_subscribers(tmp_path, waiting):
    ticket = str(tmp_path / 'ticket')
    publisher = waiting('closes', ticket, program=CLOSES)
    assert publisher.stdout.readline() == 'published\n'
    subscriber = waiting('ticket', ticket)
    assert subscriber.stdout.readline() == '1\n'
    subscriber.send_signal(signal.SIGSTOP)  # it never has the second version
    publisher.stdin.write('go on\n')
    publisher.stdin.flush()
    assert publisher.stdout.readline() == 'closes\n'
    publisher.send_signal(signal.SIGINT)
    assert publisher.communicate(timeout=60)[0] == 'interrupted\n'
    assert publisher.returncode == 0


def test_the_example_writes_text_while_it_trains(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != 'PYTEST_ADDOPTS'}
    ticket = str(tmp_path / 'ticket')
    with ranks_.Ranks(1, start='spawn') as ranks:  # it leaves a ticket behind
        ranks.run(trains, 'whole', ticket, None, 1)
        ranks.run(ends)
    small = [f'--ticket={ticket}', '--width=32', '--layers=2']
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2']
    options = {
        'stdout': subprocess.PIPE,
        'stderr': subprocess.STDOUT,
        'text': True,
        'env': environment,
    }
    writer = subprocess.Popen(
        [sys.executable, EXAMPLE, '--generate', '--length=20', *small], **options
    )
    waits = writer.stdout.readline()
    assert 'wait for another ticket' in waits and 'nobody publishes there any more' in waits, waits
    trainer = subprocess.run(
        [*command, EXAMPLE, '--steps=60', *small], check=False, timeout=300, **options
    )
    text, _ = writer.communicate(timeout=120)
    assert trainer.returncode == 0 and writer.returncode == 0, trainer.stdout + text
    assert 'step 60  loss' in trainer.stdout, trainer.stdout
    steps = [int(step) for step in re.findall(r'--- step (\d+)\nThe ', text)]
    assert steps and steps == sorted(set(steps)) and steps[-1] == 60, text
    assert 'has ended it' in text, text


def test_names_of_compiled_models():
    from fsccl_torch.publishing import plain_name as plain

    assert plain('_orig_mod.block._orig_mod.weight') == 'block.weight'
    assert plain('core_orig_mod.weight') == 'core_orig_mod.weight'
