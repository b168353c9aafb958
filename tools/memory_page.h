// A memory snapshot as a page for people: what lies where over time, how much is live against what
// is reserved and what no plan can do without, and who owns each byte. Pure: a page of any
// snapshot, which nobody vouches for.
#pragma once
#include <string>

#include "memory_snapshot.h"

namespace fsccl::trace {

struct PageOptions {
  uint64_t steps = 2;     // the last ones that the map shows; 0: all that the snapshot has
  bool by_event = false;  // the map's x axis: events in their order instead of time
};
std::string memory_page(const MemorySnapshot& snapshot, const PageOptions& options);

}  // namespace fsccl::trace
