// The timeline of a snapshot: from when to when each slot and block existed, and how many bytes
// were live and reserved at each moment. Memory that existed before the first known event exists
// from the beginning. These are pure functions of any snapshot, even of one that no pool wrote.
#pragma once
#include <cstdint>
#include <vector>

#include "memory_snapshot.h"

namespace fsccl::trace {

struct Tenancy {
  uint64_t begin_us = 0, end_us = 0;
  uint64_t address = 0, bytes = 0;
  uint32_t owner = 0;
  // true if it existed before the first event, and if it exists after the last one
  bool open_begin = false, open_end = false;
  size_t begin_event = 0, end_event = 0;  // numbers of the events that begin and end it
};

struct Moment {
  uint64_t time_us = 0;
  double slots = 0, blocks = 0;  // bytes live
  double reserved_slots = 0, reserved_blocks = 0;
};

struct Timeline {
  uint64_t begin_us = 0, end_us = 0;
  std::vector<Tenancy> tenancies;     // in the order of their beginning
  std::vector<Moment> moments;        // at the beginning and after each event
  size_t peak = 0;                    // the moment at which most was live
  std::vector<double> owned_at_peak;  // by owner
};

// The snapshot calls memory in parts[kBlocksPart] a block, and all other memory a slot.
inline constexpr size_t kBlocksPart = 2;
// Returns the index in snapshot.parts of the part in which an address lies, or parts.size() if it
// lies in none.
size_t part_of(const MemorySnapshot& snapshot, uint64_t address);
Timeline make_timeline(const MemorySnapshot& snapshot);

}  // namespace fsccl::trace
