// The memory of slots on all ranks: this rank's arena, and for each rank that this one reaches a
// view of that rank's arena, with the same offsets. The arenas of all ranks have the same size:
// they grow together, by the same bytes at the same place in the program, or not at all.
//
// Growth communicates: the ranks vote that every rank has its segment, peers fetch descriptors, and
// the ranks vote that all segments are mapped. It happens in the first step, or when a schedule is
// declared. The steps of a plan ask for no memory.
#pragma once
#include <map>

#include "pool/device/device_memory.h"
#include "pool/device/reach.h"

namespace fsccl {

class SlotMemory {
 public:
  // Collective, blocking.
  static Result<std::unique_ptr<SlotMemory>> create(Communicator& comm, DeviceMemory& memory,
                                                    const Reach& reach);

  bool reaches(int rank) const { return rank == comm_.rank() || peers_.contains(rank); }
  cuda::CUdeviceptr base(int rank) const {
    return rank == comm_.rank() ? memory_.base(DevicePart::slots) : peers_.at(rank).base();
  }
  uint64_t bytes() const { return memory_.bytes(DevicePart::slots); }
  // bytes of the first segment
  uint64_t first_bytes() const {
    return bytes() ? memory_.arena(DevicePart::slots).segment_bytes(0) : 0;
  }

  // Makes the first `extent` bytes exist. Collective and blocking if they do not exist yet.
  Status grow(uint64_t extent) { return extent <= bytes() ? success() : grow_together(extent); }
  // Returns the bytes that a shrink would keep, the same on all ranks. The second function shrinks,
  // when no rank uses the bytes above any more.
  uint64_t kept_by_shrink(uint64_t extent) const {
    return memory_.kept_by_shrink(DevicePart::slots, extent);
  }
  uint64_t shrink(uint64_t extent);
  void leak();

 private:
  SlotMemory(Communicator& comm, DeviceMemory& memory, uint64_t granularity)
      : comm_(comm), memory_(memory), granularity_(granularity) {}
  Status grow_together(uint64_t extent);
  Status publish(uint64_t tag);
  Status adopt(const std::vector<uint64_t>& tags, uint64_t bytes);

  Communicator& comm_;
  DeviceMemory& memory_;
  uint64_t granularity_;  // granularity of all segments
  std::map<int, DeviceArena> peers_;
};

}  // namespace fsccl
