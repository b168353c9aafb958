// The contexts of UCX in this process: one for each use, which all its ranks share, with settings
// for this library.
#pragma once
#include <string>

#include "base/status.h"
#include "transports/ucx/ucx_library.h"

namespace fsccl::ucx {

enum class Use {
  messages,  // active messages
  remote,    // active messages, and peers can read and write memory
  tagged,    // tagged messages, for large parts and for memory of GPUs
};
// Returns the context, which lives as long as the process.
Result<ucp_context_h> context_of(const UcxLibrary& ucx, Use use);
// Returns the sizes that the user has set for the bytes that go through a socket at once. UCX ends
// a process that receives more than it has room for, so all ranks must have the same sizes.
std::string segments_set();
Status problem_of(const UcxLibrary& ucx, const char* what, ucs_status_t status);

// Calls ucp_worker_create(), which makes files of shared memory. If a limit of file sizes forbids
// them, the error names the limit.
Status make_worker(const UcxLibrary& ucx, ucp_context_h context, const ucp_worker_params_t& params,
                   ucp_worker_h* worker);

}  // namespace fsccl::ucx
