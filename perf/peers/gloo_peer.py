#!/usr/bin/env python3
"""Runs one rank of Gloo, through torch.distributed, for netns.py. It measures what fsccl-perf
measures by the same rules, and checks each result.

  RANK= WORLD_SIZE= MASTER_ADDR= MASTER_PORT= gloo_peer.py collectives samples warm-up calls bytes...

mpi_peer.c says what a sample is and what is printed.
"""

import json
import sys
import time

import torch
import torch.distributed as dist


def value(rank, count, sample, begin=0):
    return ((torch.arange(begin, begin + count) * 7 + sample * 13 + rank * 31) % 1024).float()


class Test:
    def __init__(self, kind, size):
        self.kind, self.rank, self.ranks = kind, dist.get_rank(), dist.get_world_size()
        self.elements = size // 4
        self.block = self.elements // self.ranks
        self.input = torch.zeros(self.block if kind == 'all_gather' else self.elements)
        self.output = torch.zeros(self.block if kind == 'reduce_scatter' else self.elements)

    def prepare(self, sample):
        self.input.copy_(value(self.rank, self.input.numel(), sample))
        if self.kind == 'broadcast':
            self.output.copy_(self.input if self.rank == 0 else torch.zeros(1))
        elif self.kind == 'all_reduce':
            self.output.copy_(self.input)  # the call works in place

    def call(self):
        if self.kind == 'all_gather':
            dist.all_gather_into_tensor(self.output, self.input)
        elif self.kind == 'reduce_scatter':
            dist.reduce_scatter_tensor(self.output, self.input)
        elif self.kind == 'broadcast':
            dist.broadcast(self.output, 0)
        else:
            dist.all_reduce(self.output)

    def wrong(self, sample, calls):
        if self.kind == 'all_gather':
            right = torch.cat([value(rank, self.block, sample) for rank in range(self.ranks)])
        elif self.kind == 'broadcast':
            right = value(0, self.elements, sample)
        else:
            begin = self.rank * self.block if self.kind == 'reduce_scatter' else 0
            right = sum(
                value(rank, self.output.numel(), sample, begin) for rank in range(self.ranks)
            )
        if self.kind == 'all_reduce':
            right *= self.ranks ** (calls - 1)
        return int((self.output != right).sum())


def measure(test, samples, warmup, calls):
    times, wrong = [], 0
    for sample in range(samples + warmup):
        test.prepare(sample)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            test.call()
        times.append((time.perf_counter() - start) / calls * 1e6)
        dist.barrier()
        wrong += test.wrong(sample, calls)
    slowest = torch.tensor(times[warmup:], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    slowest = sorted(slowest.tolist())
    return slowest[samples // 10], slowest[samples // 2], wrong


def main():
    torch.set_num_threads(1)
    samples, warmup, calls, *sizes = (int(word) for word in sys.argv[2:])
    dist.init_process_group('gloo')
    for kind in sys.argv[1].split(','):
        for size in sizes:
            p10, p50, wrong = measure(Test(kind, size), samples, warmup, calls)
            wrong = torch.tensor([wrong])
            dist.all_reduce(wrong)
            if dist.get_rank() == 0:
                print(
                    json.dumps(
                        {
                            'coll': kind,
                            'bytes': size,
                            'p10_us': p10,
                            'p50_us': p50,
                            'wrong': int(wrong),
                        }
                    ),
                    flush=True,
                )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
