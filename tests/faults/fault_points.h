// Calls of the system that can be made to fail. A program that has fault_points.cpp defines malloc,
// mmap, socket and the like itself, and the library calls these definitions (the program's own
// calls do not go there). While a fault is armed, calls are counted by kind in all threads of the
// process, and the call of the chosen kind with the chosen number fails as the system would fail
// it, either alone or with all that follow. A fault that the system means to be harmless (EINTR,
// fewer bytes) may have no effect; of the calls that follow it only every other one fails.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fsccl::testing {

struct FaultKind {
  const char* name;
  bool harmless;  // the caller has to go on as if nothing had been
};

// Memory first; then calls of the system, one each.
constexpr int kMostFaultKinds = 48;
extern const FaultKind kFaultKinds[];
extern const int kFaultKindCount;

// The place of the first failing call: addresses within the library, from the call outwards, as far
// as the stack shows them.
struct FaultPlace {
  uintptr_t offsets[16] = {};
  size_t depth = 0;
};

// Arms a fault; with number 0 none fails.
void arm_fault(int kind, uint64_t number, bool from_there_on, FaultPlace* place);
// Ends the fault and the counting. Writes how many calls of each kind there were to `calls`, which
// has kFaultKindCount entries.
void disarm_fault(uint64_t* calls);
// Returns true if a call has failed since the faults were armed.
bool fault_happened();

// Returns the blocks of memory that the library has now and did not have at first.
int64_t live_blocks();

}  // namespace fsccl::testing
