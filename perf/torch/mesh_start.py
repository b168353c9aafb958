# SPDX-License-Identifier: Apache-2.0
"""Measures how long a 2-D mesh takes to start, from init_process_group to the first barrier of both
dimensions, with gloo and fsccl in turn:

  torchrun --standalone --nproc-per-node 8 mesh_start.py [--rounds 9]
"""

import argparse
import os
import statistics
import time

import fsccl_torch  # noqa: F401 - makes the backend known
import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch.distributed.device_mesh import init_device_mesh

BACKENDS, STEPS = ('gloo', 'fsccl'), ('init', 'mesh', 'barriers')


def start(backend, store, rank, size):
    """Starts a mesh and returns the seconds of each step on this rank."""
    marks = [time.perf_counter()]
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    marks.append(time.perf_counter())
    mesh = init_device_mesh('cpu', (2, size // 2), mesh_dim_names=('replicate', 'shard'))
    marks.append(time.perf_counter())
    for name in mesh.mesh_dim_names:
        dist.barrier(mesh.get_group(name))
    marks.append(time.perf_counter())
    return [after - before for before, after in zip(marks, marks[1:])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(':')[0])
    parser.add_argument(
        '--rounds', type=int, default=9, help='of each backend; medians are printed'
    )
    rounds = parser.parse_args().rounds
    rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    torch.set_num_threads(1)
    store = dist.TCPStore(
        os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), size, is_master=False
    )

    def meet(name):
        if store.add(name, 1) == size:
            store.set(f'{name}/all', '')
        store.wait([f'{name}/all'])

    found = {backend: [] for backend in BACKENDS}
    for number in range(rounds):
        for backend in BACKENDS:
            meet(f'{number}/{backend}/begin')
            found[backend].append(
                start(backend, dist.PrefixStore(f'{number}/{backend}', store), rank, size)
            )
            meet(f'{number}/{backend}/end')  # no rank ends a group while another still measures
            dist.destroy_process_group()
            time.sleep(0.05)  # so that the end of one start is no part of the next
    if rank == 0:
        for backend, rows in found.items():
            steps = ', '.join(
                f'{name} {1e3 * statistics.median(column):.1f}'
                for name, column in zip(STEPS, zip(*rows))
            )
            print(f'{backend}: {1e3 * statistics.median(map(sum, rows)):.1f} ms ({steps})')


if __name__ == '__main__':
    main()
