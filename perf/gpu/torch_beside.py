# SPDX-License-Identifier: Apache-2.0
"""What PyTorch does in place of this library's kernels and pools, on the same GPU: one line of JSON each, times are medians.

  cast_*, pack_*       torch._foreach_copy_ into parts of one tensor, as FSDP2 packs shards before it gathers
  chunk_cat_*          torch._chunk_cat of gradients in bf16 into fp32, as FSDP2 does before it reduces
  split_*              torch.split_with_sizes_copy, as FSDP2 does with what it has gathered
  alloc_free_*         torch.empty and its end, by the allocator that the environment chooses (perf/gpu/run starts one process each)
  step_*               the slots of pool_gpu's training step, taken and given back: time of a pair, most reserved, and the most live

Cases and sizes are those of kernels_gpu.cpp. Usage: torch_beside.py kernels | allocator NAME
"""
import json
import statistics
import sys
import time

import torch

SQUARE, NARROW, WIDE = 4096 * 4096, 1024 * 4096, 14336 * 4096
CASES = {"llama_3_8b_layer": [SQUARE, NARROW, NARROW, SQUARE, WIDE, WIDE, WIDE, 4096, 4096],
         "300_small": [64 << i // 2 % 4 if i % 2 else 1024 << i // 2 % 7 for i in range(300)]}
ROUNDS, REPEATS = 15, 10
FOOTPRINT = 256 << 20  # consecutive launches use other memory, so that none finds its own in the cache


def microseconds(launch, sets):
    times, first, last = [], torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
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
    print(json.dumps({"bench": "torch", "case": case, "us": round(us, 2), "bytes": size, "gb_per_s": round(size / us / 1e3, 1)}),
          flush=True)


def kernels():
    for name, counts in CASES.items():
        total = sum(counts)
        for case, source, target in (("cast", torch.float32, torch.bfloat16), ("pack", torch.bfloat16, torch.bfloat16)):
            sets = max(1, FOOTPRINT // (total * (source.itemsize + target.itemsize)))
            flat = [torch.empty(total, dtype=target, device="cuda") for _ in range(sets)]
            parts = [torch.split(one, counts) for one in flat]
            shards = [[torch.rand(count, device="cuda").to(source) for count in counts] for _ in range(sets)]
            us = microseconds(lambda i: torch._foreach_copy_(parts[i], shards[i]), sets)
            say(f"{case}_{name}", us, total * (source.itemsize + target.itemsize))
            del flat, parts, shards
        grads = [torch.rand(count, device="cuda").to(torch.bfloat16).view(-1, 32) for count in counts if count % 32 == 0]
        size = sum(grad.numel() for grad in grads)
        out = torch.empty(2, size // 2, device="cuda")
        say(f"chunk_cat_{name}", microseconds(lambda _: torch._chunk_cat(grads, dim=0, num_chunks=2, out=out), 1), size * 6)
        whole = [torch.empty(2, count // 2, dtype=torch.bfloat16, device="cuda") for count in counts]
        gathered = torch.rand(2, sum(one.size(1) for one in whole), device="cuda").to(torch.bfloat16)
        sizes = [one.size(1) for one in whole]
        us = microseconds(lambda _: torch.split_with_sizes_copy(gathered, sizes, dim=1, out=whole), 1)
        say(f"split_{name}", us, gathered.nbytes * 2)
        del grads, out, whole, gathered


def training_step(layers):
    """As in pool_gpu.cpp: ('take' or 'give', key, bytes)."""
    events, units = [], layers + 2

    def take(key, unit):
        events.append(("take", key, (200 if unit in (0, units - 1) else 85) << 20))
    take(0, 0)
    for unit in range(units - 1):
        take(2 * (unit + 1), unit + 1)
        events.append(("give", 2 * unit, 0))
    for unit in reversed(range(units)):
        if unit:
            take(2 * (unit - 1), unit - 1)
        take(2 * unit + 1, unit)
        events += [("give", 2 * unit, 0), ("give", 2 * unit + 1, 0)]
    return events


def step(name):
    events, held, live, bound, times = training_step(32), {}, 0, 0, []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for what, key, size in events:
            if what == "take":
                held[key] = torch.empty(size, dtype=torch.uint8, device="cuda")
            else:
                del held[key]
        times.append((time.perf_counter_ns() - begin) / (len(events) / 2))
    for what, key, size in events:
        live = live + size if what == "take" else live - held.pop(key)
        held.update({key: size} if what == "take" else {})
        bound = max(bound, live)
    row = {"bench": "torch", "case": f"step_{name}", "ns": round(statistics.median(times), 1), "bound_bytes": bound}
    if name != "rmm":  # which does not tell
        peak = torch.cuda.max_memory_reserved()
        row |= {"peak_reserved_bytes": peak, "ratio": round(peak / bound, 4)}
    print(json.dumps(row), flush=True)


def rmm_allocator():
    import rmm
    from rmm.allocators.torch import rmm_torch_allocator
    rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=2 << 30))
    torch.cuda.memory.change_current_allocator(rmm_torch_allocator)


def allocator(name):
    if name == "rmm":
        try:
            rmm_allocator()
        except ImportError as error:
            print(f"SKIP: rmm: {error}")
            return
    step(name)
    if name != "rmm":
        torch.cuda.empty_cache()
    pairs = 2000
    for size in (1 << 20, 64 << 20, 416 << 20):
        times = []
        for _ in range(ROUNDS):
            begin = time.perf_counter_ns()
            for _ in range(pairs):
                block = torch.empty(size, dtype=torch.uint8, device="cuda")
                del block
            times.append((time.perf_counter_ns() - begin) / pairs)
            torch.cuda.synchronize()
        print(json.dumps({"bench": "torch", "case": f"alloc_free_{name}", "bytes": size, "ns": round(statistics.median(times), 1)}),
              flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["kernels"]:
        kernels()
    elif len(sys.argv) == 3 and sys.argv[1] == "allocator":
        allocator(sys.argv[2])
    else:
        sys.exit(__doc__)
