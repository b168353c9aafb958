// Asks PMIx for facts that no variable says: how many ranks a job has, and where they are. It uses
// libpmix.so.2, if the system has it.
#pragma once
#include <cstdint>
#include <string>

#include "base/status.h"

namespace fsccl {

struct PmixJob {
  uint32_t ranks = 0;
  uint32_t local_ranks = 0;  // on this host
  uint16_t local_rank = 0;
  std::string first_host;  // host of rank 0
};

// Connects to the launcher's server on this host, asks, and leaves again, so that an MPI library
// may do the same later. The answer is kept, because it does not change while the process lives.
Result<PmixJob> ask_pmix();

}  // namespace fsccl
