// Handles of communicators. A handle is never used again, so a call with a freed one is noticed.
#pragma once
#include <atomic>
#include <functional>
#include <memory>

#include "comm.h"

struct ncclComm {
  std::shared_ptr<fsccl::stand_in_nccl::Comm> comm;  // null if the handle was freed
  // The number of groups whose end streams have not reached yet.
  std::atomic<int> outstanding{0};
};

namespace fsccl::stand_in_nccl {

ncclComm* new_handle(std::shared_ptr<Comm> comm);
void forget(ncclComm* handle);
// Returns an error, and notes a broken rule, if the handle is not one of these or was freed.
int check(ncclComm* handle, const char* function);
// begin_job() notes that a non-blocking call of this thread on the communicator is under way.
// check_job() returns an error if the thread's last such call was on another communicator and has
// not been joined.
void begin_job(Comm& comm);
int check_job(const Comm& comm, const char* function);
Code in_background(Comm& comm, std::function<int()> job);

}  // namespace fsccl::stand_in_nccl
