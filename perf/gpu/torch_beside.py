# SPDX-License-Identifier: Apache-2.0
"""Measures what PyTorch does in place of this library's kernels and pools, on the same GPU. Each
case has a line of JSON, whose times are medians.

  cast_*, pack_*       torch._foreach_copy_ into parts of one tensor: the least that PyTorch can do
  copy_in_*            what FSDP2 does in place of cast_* before it gathers: shards are cast into a
                       tensor made for that, and its parts are copied to where the gather reads
                       (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:
                       foreach_all_gather(), which calls _get_param_all_gather_inputs() and then
                       all_gather_copy_in)
  reduce_*_N_sources   torch._chunk_cat of a rank's gradients (bf16) into fp32 for N ranks, as FSDP2
                       does before it reduces, and the mean of N such chunks behind it: what a
                       reduce-scatter does, without what it sends
  chunk_cat_*          the first half of that alone
  unpack_*             torch.split_with_sizes_copy, as FSDP2 does with what it has gathered
  pairs                a block is taken from the allocator and given back, by raw_alloc and
                       raw_delete as tensors call them, but without a tensor. The environment
                       chooses the allocator (perf/gpu/run starts one process for each). `python_ns`
                       is what the same loop takes with calls that do nothing
  traces               the same for the training steps of `pool_gpu --steps`: the time of a pair,
                       the most bytes reserved and the most live

The cases and sizes are those of kernels_gpu.cpp and pool_gpu.cpp.

Usage: torch_beside.py kernels | allocator NAME STEPS
"""

import json
import operator
import pathlib
import statistics
import sys
import time

import torch

SQUARE, NARROW, WIDE = 4096 * 4096, 1024 * 4096, 14336 * 4096
CASES = {
    'llama_3_8b_layer': [SQUARE, NARROW, NARROW, SQUARE, WIDE, WIDE, WIDE, 4096, 4096],
    '300_small': [64 << i // 2 % 4 if i % 2 else 1024 << i // 2 % 7 for i in range(300)],
}
ACCUMULATED = ('llama_3_8b_layer',)
SIZES = (64 << 10, 16 << 20, 256 << 20)
ROUNDS, REPEATS, PAIRS = 15, 10, 2000
STREAM = 0  # the default stream
FOOTPRINT = (
    256 << 20
)  # consecutive launches use other memory, so that none finds its own in the cache


def microseconds(launch, sets):
    times, first, last = (
        [],
        torch.cuda.Event(enable_timing=True),
        torch.cuda.Event(enable_timing=True),
    )
    for warm in range(3):
        launch(warm % sets)
    for _ in range(ROUNDS):
        first.record()
        for i in range(REPEATS):
            launch(i % sets)
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) * 1000 / REPEATS)
    return statistics.median(times)


def say(case, us, size):
    print(
        json.dumps(
            {'case': case, 'us': round(us, 2), 'bytes': size, 'gb_per_s': round(size / us / 1e3, 1)}
        ),
        flush=True,
    )


def kernels():
    for name, counts in CASES.items():
        total = sum(counts)
        for case, source, target in (
            ('cast', torch.float32, torch.bfloat16),
            ('pack', torch.bfloat16, torch.bfloat16),
        ):
            sets = max(1, FOOTPRINT // (total * (source.itemsize + target.itemsize)))
            flat = [torch.empty(total, dtype=target, device='cuda') for _ in range(sets)]
            parts = [torch.split(one, counts) for one in flat]
            shards = [
                [torch.rand(count, device='cuda').to(source) for count in counts]
                for _ in range(sets)
            ]
            us = microseconds(lambda i: torch._foreach_copy_(parts[i], shards[i]), sets)
            say(f'{case}_{name}', us, total * (source.itemsize + target.itemsize))
            if case == 'cast':
                us = microseconds(lambda i: copy_in(shards[i], counts, flat[i]), sets)
                say(f'copy_in_{name}', us, total * (source.itemsize + 3 * target.itemsize))
            del flat, parts, shards
        for ranks in (2, 8):
            reduction(name, counts, ranks)
        unpack(name, counts, 2)


def copy_in(shards, counts, gathered):
    between = torch.split(torch.empty(sum(counts), dtype=gathered.dtype, device='cuda'), counts)
    torch._foreach_copy_(between, shards)
    torch._foreach_copy_(torch.split(gathered, counts), between)


def reduction(name, counts, ranks):
    """Measures a reduction. All counts are multiples of 8, so nothing is padded. The layer's
    gradients are added to others, as in kernels_gpu.cpp."""
    total, shard = sum(counts), sum(counts) // ranks
    sets = max(1, FOOTPRINT // (total * 6))
    grads = [
        [torch.rand(count, device='cuda').to(torch.bfloat16).view(8, -1) for count in counts]
        for _ in range(sets)
    ]
    chunks = [torch.empty(ranks, shard, device='cuda') for _ in range(sets)]
    sums = [torch.zeros(shard, device='cuda') for _ in range(sets)]
    held = [torch.zeros(shard, device='cuda') for _ in range(sets)] if name in ACCUMULATED else None

    def cat(i):
        torch._chunk_cat(grads[i], dim=0, num_chunks=ranks, out=chunks[i])

    def reduce(i):
        cat(i)
        torch.mean(chunks[i], dim=0, out=sums[i])
        if held:
            held[i].add_(sums[i])

    say(f'chunk_cat_{name}_{ranks}', microseconds(cat, sets), total * 6)
    say(
        f'reduce_{name}_{ranks}_sources',
        microseconds(reduce, sets),
        total * 2 + shard * (8 if held else 4),
    )


def unpack(name, counts, ranks):
    sets = max(1, FOOTPRINT // (sum(counts) * 4))
    sizes = [count // ranks for count in counts]
    gathered = [
        torch.rand(ranks, sum(sizes), device='cuda').to(torch.bfloat16) for _ in range(sets)
    ]
    whole = [
        [torch.empty(ranks, size, dtype=torch.bfloat16, device='cuda') for size in sizes]
        for _ in range(sets)
    ]
    us = microseconds(
        lambda i: torch.split_with_sizes_copy(gathered[i], sizes, dim=1, out=whole[i]), sets
    )
    say(f'unpack_{name}', us, gathered[0].nbytes * 2)


def idle(take, give):
    """Returns two calls that do nothing: take and give of no bytes, or two functions of Python
    itself if the allocator refuses a request for no bytes."""
    try:
        give(take(0, STREAM))
        return take, give
    except RuntimeError:
        return operator.or_, operator.index


def replayed_ns(take, give, events):
    """Returns the nanoseconds of a pair. Blocks are those of the allocator, without a tensor around
    them."""
    held, times = {}, []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for takes, key, size in events:
            if takes:
                held[key] = take(size, STREAM)
            else:
                give(held[key])
        times.append((time.perf_counter_ns() - begin) / (len(events) / 2))
    return statistics.median(times)


def replay(name, trace, events):
    take, give = (
        torch._C._cuda_cudaCachingAllocator_raw_alloc,
        torch._C._cuda_cudaCachingAllocator_raw_delete,
    )
    python_ns = replayed_ns(*idle(take, give), [(takes, key, 0) for takes, key, _ in events])
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    ns, live, bound, sizes = replayed_ns(take, give, events), 0, 0, {}
    for takes, key, size in events:
        live += size if takes else -sizes[key]
        sizes[key] = size
        bound = max(bound, live)
    peak = torch.cuda.max_memory_reserved()
    print(
        json.dumps(
            {
                'what': 'trace',
                'trace': trace,
                'allocator': name,
                'ns': round(ns, 1),
                'python_ns': round(python_ns, 1),
                'peak_reserved_bytes': peak,
                'bound_bytes': bound,
                'ratio': round(peak / bound, 4),
            }
        ),
        flush=True,
    )


def pair_ns(take, give, size):
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(PAIRS):
            give(take(size, STREAM))
        times.append((time.perf_counter_ns() - begin) / PAIRS)
        torch.cuda.synchronize()
    return statistics.median(times)


def pairs(name, size):
    take, give = (
        torch._C._cuda_cudaCachingAllocator_raw_alloc,
        torch._C._cuda_cudaCachingAllocator_raw_delete,
    )
    python_ns, ns = pair_ns(*idle(take, give), 0), pair_ns(take, give, size)
    print(
        json.dumps(
            {
                'what': 'pair',
                'allocator': name,
                'bytes': size,
                'ns': round(ns, 1),
                'python_ns': round(python_ns, 1),
            }
        ),
        flush=True,
    )


def allocator(name, steps):
    torch.cuda.init()
    for line in pathlib.Path(steps).read_text(encoding='utf-8').splitlines():
        step = json.loads(line)
        replay(name, step['trace'], step['events'])
    for size in SIZES:
        pairs(name, size)


if __name__ == '__main__':
    if sys.argv[1:] == ['kernels']:
        kernels()
    elif len(sys.argv) == 4 and sys.argv[1] == 'allocator':
        allocator(*sys.argv[2:])
    else:
        sys.exit(__doc__)
