// Calls of the system that can be made to fail. A program that has fault_points.cpp defines malloc,
// mmap, socket and the like itself, and the library's calls come there first (its own calls do
// not). While armed, in all threads of the process, calls are counted by kind, and the one of the
// chosen kind with the chosen number fails as the system would fail it: that one alone, or it and
// all that follow. A fault that the system means to be harmless (EINTR, fewer bytes) may have no
// effect; of those that follow every other call fails.
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

// Where the first failing call came from: addresses within the library, from the call outwards, as
// far as the stack shows them.
struct FaultPlace {
  uintptr_t offsets[16] = {};
  size_t depth = 0;
};

// number 0: none fails.
void arm_fault(int kind, uint64_t number, bool from_there_on, FaultPlace* place);
// Calls are counted until then. calls[kFaultKindCount]: how many there were.
void disarm_fault(uint64_t* calls);
// Returns true if a call has failed since the faults were armed.
bool fault_happened();

// Blocks of memory that the library has and did not have at first.
int64_t live_blocks();

}  // namespace fsccl::testing
