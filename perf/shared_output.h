// An output that exists once per host, in the slot of a unit with one frozen parameter. Each rank
// holds a block of the parameter (all-gather), or rank 0 holds all of it (broadcast). A call gives
// the slot back and gathers again, so the copy of each rank into the slot is part of its time.
#pragma once
#include "collective_table.h"
#include "session.h"

namespace fsccl::perf {

class SharedOutput {
 public:
  // `input` is this rank's part in the caller's memory, or null if the rank holds none. It must
  // outlive this object.
  SharedOutput(const Session& session, SharedSlot slot, void* input, uint64_t elements,
               fsccl_dtype_t dtype);
  ~SharedOutput();
  SharedOutput(const SharedOutput&) = delete;
  SharedOutput& operator=(const SharedOutput&) = delete;

  void gather();
  char* data() const;  // data of the last gather

 private:
  fsccl_pool_t pool_;
  fsccl_unit_t unit_ = nullptr;
  bool gathered_ = false;
};

}  // namespace fsccl::perf
