// UCX as this process uses it: one context for all its ranks, with settings that serve us; another for those that ask for no access
// to memory.
#pragma once
#include <string>

#include "base/status.h"
#include "transports/ucx/ucx_library.h"

namespace fsccl::ucx {

// Lives as long as the process. `remote`: memory can be read and written by peers.
Result<ucp_context_h> context_of(const UcxLibrary& ucx, bool remote);
// What the user has set of the sizes that go through a socket at once. UCX ends a process to which more is sent than it has room
// for: all ranks must have the same.
std::string segments_set();
Status problem_of(const UcxLibrary& ucx, const char* what, ucs_status_t status);

}  // namespace fsccl::ucx
