// A simulation of the policy of PyTorch's caching allocator of device memory
// (c10/cuda/CUDACachingAllocator.cpp, 2.15). Each stream has two pools, one for small requests (up
// to 1 MiB) and one for larger ones, and sizes are in units of 512 bytes. Small requests are met
// from segments of 2 MiB, larger ones below 10 MiB from segments of 20 MiB; others have their own
// segments, in units of 2 MiB. The allocator takes the block that fits best and splits off the
// rest, except for a rest of up to 1 MiB of a large block. It joins neighbours that are free. With
// expandable segments each pool has one range instead, which grows by pages of 20 MiB (2 MiB for
// small requests), and every rest is split off. Blocks return to their pool when they are freed; no
// memory is ever returned to the system.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "perf/pool/trace.h"

namespace fsccl::perf {

class CachingPolicy {
 public:
  explicit CachingPolicy(bool expandable) : expandable_(expandable) {}
  void apply(const StepEvent& event);
  uint64_t reserved_bytes() const { return reserved_; }
  // Returns the number of calls of cudaMalloc, or of mapped pages.
  uint64_t upstream_calls() const { return calls_; }

 private:
  struct Pool {
    std::set<std::pair<uint64_t, uint64_t>> free;  // (bytes, address)
    uint64_t end = 0;                              // end of the range, with expandable segments
  };
  struct Block {
    uint64_t bytes, segment;
    bool used;
    uint32_t pool;
  };
  void take(const StepEvent& event);
  void give_back(uint64_t key);
  uint64_t grow(uint32_t pool, uint64_t bytes, bool small);
  uint64_t expand(uint32_t pool, uint64_t bytes, bool small);

  bool expandable_;
  std::map<uint32_t, Pool> pools_;
  std::map<uint64_t, Block> blocks_;  // by address
  std::map<uint64_t, uint64_t> held_;
  uint64_t next_segment_ = 0, reserved_ = 0, calls_ = 0;
};

}  // namespace fsccl::perf
