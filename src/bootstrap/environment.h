// Finds the place where ranks meet from the variables of their launcher, if no unique id names it.
#pragma once
#include <cstdint>

#include "base/config.h"
#include "base/status.h"
#include "bootstrap/join.h"
#include "bootstrap/launcher.h"

namespace fsccl {

// Returns the place where the ranks meet. Rank 0 begins to listen there. `instance` counts the
// communicators that this process has made from the environment; each has a place of its own. If
// `problem` is an error, this rank cannot join: the function then tells the other ranks, as far as
// it can reach them, and fails with `problem` or with an earlier failure of the job.
Result<RendezvousPoint> meet_from_environment(const LaunchEnvironment& launch,
                                              const Config& settings, uint64_t instance,
                                              Deadline deadline, Status problem = {});

}  // namespace fsccl
