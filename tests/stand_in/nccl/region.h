// The memory that the ranks of a communicator share: a memfd, which the process that made the
// unique id keeps open and the others open by that process' number. It holds a channel of bytes for
// each pair of ranks, and the next action of each rank.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "abi.h"

namespace fsccl::stand_in_nccl {

inline constexpr int kMostRanks = 16;
inline constexpr uint64_t kChannelBytes = 32u << 10, kNoPlace = ~uint64_t{0};

struct Channel {  // bytes from one rank to another
  std::atomic<uint64_t> written, read;
  char bytes[kChannelBytes];
};

struct Announced {  // a collective, before it begins
  std::atomic<uint64_t> number;
  uint64_t place;  // where its buffers lie in windows; kNoPlace: not in any
  char text[128];
};

struct Region {
  std::atomic<uint32_t> ranks, arrived;
  std::atomic<uint64_t> hosts[kMostRanks];  // by NCCL_HOSTID; 0: not set
  std::atomic<uint32_t> broken;             // a rank has found a disagreement, and `problem`
  char problem[512];
  struct Meeting {
    std::atomic<uint64_t> number, value;
  } meetings[kMostRanks];
  Announced announced[kMostRanks][2];
  Channel channels[kMostRanks][kMostRanks];  // [from][to]
};

UniqueId make_region();
// Returns null if the id is not one of make_region().
std::shared_ptr<Region> open_region(const UniqueId& id);

// Naps until done() or stop() is true. Returns false if stop() was.
bool wait_until(const std::function<bool()>& done, const std::function<bool()>& stop);

}  // namespace fsccl::stand_in_nccl
