// Calls of the system that can be made to fail. A program that has fault_points.cpp defines malloc,
// mmap, socket and the like itself, and the library calls these definitions (the program's own
// calls do not go there). While a fault is armed, calls are counted by kind in all threads of the
// process, and the call of the chosen kind with the chosen number fails as the system would make it
// fail, either alone or with all that follow. A fault that callers must be able to ignore (EINTR,
// fewer bytes) must have no effect. After such a fault only every other call fails.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fsccl::testing {

struct FaultKind {
  const char* name;
  bool harmless;  // the caller must go on as if the call had not failed
};

// The first kind is memory. Each of the others is one call of the system.
constexpr int kMostFaultKinds = 48;
extern const FaultKind kFaultKinds[];
extern const int kFaultKindCount;

// The place of the first call that failed: return addresses within the library, beginning with that
// of the call itself, as far as the stack shows them.
struct FaultPlace {
  uintptr_t offsets[16] = {};
  size_t depth = 0;
};

// Arms a fault. If the number is 0, no call fails.
void arm_fault(int kind, uint64_t number, bool from_there_on, FaultPlace* place);
// Ends the fault and the counting. Writes how many calls of each kind there were to `calls`, which
// has kFaultKindCount entries.
void disarm_fault(uint64_t* calls);
// Returns true if a call has failed since the faults were armed.
bool fault_happened();

// Returns the blocks of memory that the library has now and did not have at first.
int64_t live_blocks();

}  // namespace fsccl::testing
