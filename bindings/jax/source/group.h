// Groups of ranks that XLA's devices are: a communicator for each device of this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fsccl/fsccl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "../../last_error.h"
#include "order.h"

namespace fsccl_jax {

struct Rank {
  fsccl_comm_t comm = nullptr;
  int rank = 0;
  int ranks = 0;
  // guards what follows; a call's operations are submitted together
  std::mutex issue;
  std::map<uint64_t, uint64_t> calls;  // number of calls so far, by call site
  Order order;
  std::string failed;  // why no more operations are issued; "" while they are
};

// nullptr where `group` was not joined, or has left, or has no such device.
std::shared_ptr<Rank> find(int64_t group, int device);

using fsccl_bindings::last_error;

}  // namespace fsccl_jax
