// Handles, which are never used again: so one that was freed is seen. And the driver that
// operations are put on streams of.
#pragma once
#include <atomic>
#include <functional>
#include <memory>

#include "comm.h"

struct ncclComm {
  std::shared_ptr<fsccl::stand_in_nccl::Comm> comm;  // null: freed
  // groups that streams have not come to the end of
  std::atomic<int> outstanding{0};
};

namespace fsccl::stand_in_nccl {

ncclComm* new_handle(std::shared_ptr<Comm> comm);
void forget(ncclComm* handle);
// Not one of ours, or freed: an error, and a line.
int check(ncclComm* handle, const char* function);
// A non-blocking call of this thread on the communicator is under way; what the thread's last one
// was.
void begin_job(Comm& comm);
int check_job(const Comm& comm, const char* function);
Code in_background(Comm& comm, std::function<int()> job);

}  // namespace fsccl::stand_in_nccl
