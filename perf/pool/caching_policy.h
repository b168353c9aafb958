// A simulation of the policy of PyTorch's caching allocator of device memory
// (c10/cuda/CUDACachingAllocator.cpp, 2.15): a pool per stream, sizes in units of 512 bytes,
// requests up to 1 MiB from segments of 2 MiB, up to 10 MiB from 20 MiB, above in units of 2 MiB;
// best fit; the rest of a large block is split off from 1 MiB on; neighbours that are free are
// joined. With expandable segments, one range per stream and pool that grows by pages of 20 MiB
// (small: 2 MiB). Blocks return to their stream's pool when they are freed; nothing is ever
// returned to the system.
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
  // calls of cudaMalloc, or of the mapping of a page
  uint64_t upstream_calls() const { return calls_; }

 private:
  struct Pool {
    std::set<std::pair<uint64_t, uint64_t>> free;  // (bytes, address)
    uint64_t end = 0;                              // expandable: of the range that grows
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
