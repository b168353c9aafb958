// Makes a page for people of a memory snapshot. The page shows what lies where over time, how much
// is live against what is reserved and what no plan can do without, and who owns each byte. This is
// a pure function of any snapshot, even of one that no pool wrote.
#pragma once
#include <string>

#include "memory_snapshot.h"

namespace fsccl::trace {

struct PageOptions {
  uint64_t steps = 2;     // number of last steps that the map shows; 0 for all
  bool by_event = false;  // the map's x axis has events in their order instead of time
};
std::string memory_page(const MemorySnapshot& snapshot, const PageOptions& options);

}  // namespace fsccl::trace
