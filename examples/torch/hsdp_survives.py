# SPDX-License-Identifier: Apache-2.0
"""HSDP that survives the death of a rank. Two replicas of a model are each sharded over half of the
ranks. One rank is killed; the others go on without a checkpoint, with the state that they have in
memory, sharded over all ranks that are left.

  pip install ./bindings/python ./bindings/torch
  python examples/torch/hsdp_survives.py --ranks 4 --victim 3

The program starts its ranks itself, because torchrun ends all ranks when one has died. Its last
line says from which step the survivors went on, and that all of them have the same parameters.
"""

import argparse
import os
import signal
import tempfile

import fsccl_torch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Training:
    """A model and its optimizer. The model is sharded over one dimension of a mesh; if the mesh has
    two, the model is replicated over the other."""

    def __init__(self, mesh):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 37), nn.ReLU(), nn.Linear(37, 5))
        for layer in (self.model[0], self.model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def gradients(self, step):
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        data, wanted = (
            torch.randn(16, 8, generator=generator),
            torch.randn(16, 5, generator=generator),
        )
        nn.functional.mse_loss(self.model(data), wanted).backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self):
        """Returns all tensors that have to survive, in an order that does not depend on the mesh.
        Adam's count of steps is the same on all ranks, so it is not among them."""
        state = self.optimizer.state
        parameters = list(self.model.parameters())
        return parameters + [
            state[parameter][name] for name in ('exp_avg', 'exp_avg_sq') for parameter in parameters
        ]

    def make_state(self, step):
        """Returns the state that Adam makes in its first step, to be filled."""
        for parameter in self.model.parameters():
            self.optimizer.state[parameter] = {
                'step': torch.tensor(float(step)),
                'exp_avg': torch.zeros_like(parameter),
                'exp_avg_sq': torch.zeros_like(parameter),
            }


def go_on(old, step):
    """Returns the training on the ranks that are left, and the step that it has reached."""
    newest = torch.tensor(step)
    dist.all_reduce(newest, dist.ReduceOp.MAX)
    if newest > step:  # some survivors had passed the barrier, so all have their gradients
        old.update()
        step += 1
    made = Training(init_device_mesh('cpu', (dist.get_world_size(),)))
    made.make_state(step)
    assert (
        fsccl_torch.redistribute(
            [tensor.detach() for tensor in old.tensors()],
            [tensor.detach() for tensor in made.tensors()],
            version=step,
        )
        == step
    )
    dist.barrier()  # all ranks have received their parts, so the old tensors may go
    return made, step


def survive(training, step):
    fsccl_torch.shrink()
    return go_on(training, step)


def leave_out(training, step, rank):
    """Goes on without a rank that has not died; the result of the survivors is compared with this
    one."""
    if dist.get_rank() == rank:
        return None, step
    dist.shrink_group([rank])
    return go_on(training, step)


def run(rank, arguments, folder, results):
    torch.set_num_threads(1)
    dist.init_process_group(
        'fsccl', init_method=f'file://{folder}/store', rank=rank, world_size=arguments.ranks
    )
    training = Training(
        init_device_mesh('cpu', (2, arguments.ranks // 2), mesh_dim_names=('replicas', 'shards'))
    )
    step, changed = 0, None
    while step < arguments.steps:
        try:
            if changed is None and step == arguments.change_after:
                if arguments.without_death:
                    training, changed = leave_out(training, step, arguments.victim)
                    if training is None:
                        return
                elif rank == arguments.victim:
                    os.kill(os.getpid(), signal.SIGKILL)
            training.gradients(step)
            # A step counts once all ranks have its gradients: its update needs no other rank.
            dist.barrier()
        except dist.DistBackendError as error:
            print(f'rank {rank}: {error}', flush=True)
            training, step = survive(training, step)
            changed = step
            continue
        training.update()
        step += 1
    whole = torch.cat([tensor.detach().full_tensor().flatten() for tensor in training.tensors()])
    results.put((rank, changed, whole.numpy().tobytes()))
    dist.destroy_process_group()


def main(given=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {'ranks': 4, 'victim': 3, 'change-after': 4, 'steps': 9}.items():
        parser.add_argument(f'--{name}', type=int, default=default)
    parser.add_argument(
        '--without-death', action='store_true', help='the victim lives, and is left out'
    )
    arguments = parser.parse_args(given)
    context = mp.get_context('spawn')
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=run, args=(rank, arguments, folder, results))
            for rank in range(arguments.ranks)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    codes = [process.exitcode for process in ranks]
    wanted = [
        -signal.SIGKILL if rank == arguments.victim and not arguments.without_death else 0
        for rank in range(arguments.ranks)
    ]
    if codes != wanted:
        raise SystemExit(f'exit codes {codes}, and not {wanted}')
    said = {}
    while not results.empty():
        rank, changed, whole = results.get()
        said[rank] = changed, whole
    if len(said) != arguments.ranks - 1 or len(set(said.values())) != 1:
        raise SystemExit('the survivors have different results')
    changed, whole = said.popitem()[1]
    print(
        f'{arguments.ranks - 1} ranks went on from step {changed} to {arguments.steps} with the '
        f'same {len(whole) // 4} numbers'
    )
    return whole


if __name__ == '__main__':
    main()
