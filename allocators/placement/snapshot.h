// Writes a pool's memory and its last events in the schema of PyTorch's memory snapshots
// (torch/cuda/memory.py, _snapshot), which pytorch.org/memory_viz and torch/cuda/_memory_viz.py
// read. A part of the pool is a segment; its blocks, live ones and the gaps between them, fill it
// completely. Owners are frames: "unit layers.3, parameters". Facts that the schema has no place
// for, such as the plan and its bounds, stand under the key "fsccl", which other readers ignore.
#pragma once
#include <array>
#include <string>

#include "allocators/placement/journal.h"
#include "base/value_writer.h"

namespace fsccl {

struct SnapshotFacts {
  std::string pool, library;
  uint64_t rank = 0, ranks = 0;
  uint64_t shared_host = 0;  // the rank that owns the memory of shared slots
  bool dry_run = false;
  uint64_t reserved_bytes = 0;                       // by this rank
  std::array<uint64_t, kPoolParts> reserved_here{};  // reserved bytes of each part
  uint64_t limit_bytes = 0;
  struct MemoryPlan {
    uint64_t bytes = 0, live_bound = 0, clique_bound = 0;
  };
  std::array<MemoryPlan, kPoolParts> plans;
  uint64_t plan_hits = 0, plan_misses = 0, growths = 0, steps = 0, live_peak = 0;
};

void write_snapshot(const SnapshotFacts& facts, const JournalCopy& journal, ValueWriter& out);

}  // namespace fsccl
