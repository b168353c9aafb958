// UCX as this process uses it: a context for each use, of all its ranks, with settings that serve
// us.
#pragma once
#include <string>

#include "base/status.h"
#include "transports/ucx/ucx_library.h"

namespace fsccl::ucx {

enum class Use {
  messages,  // active ones
  remote,    // and peers can read and write memory
  tagged,    // messages of large parts, and of memory of GPUs
};
// Lives as long as the process.
Result<ucp_context_h> context_of(const UcxLibrary& ucx, Use use);
// Returns the sizes that the user has set for the bytes that go through a socket at once. UCX ends
// a process that gets more than it has room for, so all ranks must have the same.
std::string segments_set();
Status problem_of(const UcxLibrary& ucx, const char* what, ucs_status_t status);

// ucp_worker_create(). It makes files of shared memory: what a limit of file sizes refuses is an
// error that names the limit.
Status make_worker(const UcxLibrary& ucx, ucp_context_h context, const ucp_worker_params_t& params,
                   ucp_worker_h* worker);

}  // namespace fsccl::ucx
