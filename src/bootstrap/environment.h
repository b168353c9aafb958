// What a launcher has told this process: torchrun, Open MPI's mpirun, or whoever sets RANK and WORLD_SIZE by hand.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/config.h"
#include "base/status.h"
#include "bootstrap/join.h"

namespace fsccl {

using ReadVariable = std::function<const char*(const char* name)>;

struct LaunchEnvironment {
  int32_t rank = -1;
  int32_t ranks = 0;
  bool one_host = false;  // the launcher says so
  std::string job;        // the same text on all ranks, another for every job of the user that runs at the same time
  std::string master_address;
  uint16_t master_port = 0;  // occupied by others; only a base for the default of FSCCL_BOOTSTRAP_PORT
};

// FSCCL_ERR_CONFIG names the variable that is missing or wrong.
Result<LaunchEnvironment> read_environment(const ReadVariable& read);

// The place where the ranks meet; `instance` counts the communicators that this process has made from the environment. Rank 0
// begins to listen there.
Result<MeetingPlace> meet_from_environment(const LaunchEnvironment& launch, const Config& settings, uint64_t instance,
                                           Deadline deadline);

}  // namespace fsccl
