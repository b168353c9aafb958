// Functions on communicators that both libraries for XLA need.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>

namespace fsccl_bindings {

// Adds the counters of `comm`, unless it has ended.
inline void add_counters(fsccl_comm_t comm, fsccl_counters_t& sum) {
  fsccl_counters_t one = FSCCL_COUNTERS_INIT;
  if (fsccl_comm_counters(comm, &one) != FSCCL_OK) return;
  sum.operations += one.operations;
  sum.bytes_read += one.bytes_read;
  sum.bytes_written += one.bytes_written;
  sum.kernel_copies += one.kernel_copies;
  sum.sleeps += one.sleeps;
}

// Leaves the other ranks of `comm`. Operations in flight are aborted on all ranks: nobody waits for
// the rest of a step that this rank no longer runs.
inline fsccl_status_t leave(fsccl_comm_t comm) {
  const fsccl_status_t status = fsccl_comm_destroy(comm);
  if (status != FSCCL_ERR_INVALID_STATE) return status;
  fsccl_comm_abort(comm);
  return fsccl_comm_destroy(comm);
}

}  // namespace fsccl_bindings
