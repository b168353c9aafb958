// The memory that the ranks of a communicator share. It is a memfd, which the process that made the
// unique id keeps open, and which the others open by that process's number. It has a channel of
// bytes for each pair of ranks, and the next action of each rank.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "abi.h"

namespace fsccl::stand_in_nccl {

inline constexpr int kMostRanks = 16;
inline constexpr uint64_t kChannelBytes = 32u << 10, kNoPlace = ~uint64_t{0};

// The bytes on their way from one rank to another.
struct Channel {
  std::atomic<uint64_t> written, read;
  char bytes[kChannelBytes];
};

// A collective that a rank is about to begin.
struct Announced {
  std::atomic<uint64_t> number;
  uint64_t place;  // the place of its buffers in windows, or kNoPlace
  char text[128];
};

struct Region {
  std::atomic<uint32_t> ranks, arrived;
  std::atomic<uint64_t> hosts[kMostRanks];  // from NCCL_HOSTID; 0: not set
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

// Sleeps briefly until done() or stop() is true. Returns false if it was stop().
bool wait_until(const std::function<bool()>& done, const std::function<bool()>& stop);

}  // namespace fsccl::stand_in_nccl
