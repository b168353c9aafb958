// Finds where ranks meet from the variables of their launcher, where nobody has told them more.
#pragma once
#include <cstdint>

#include "base/config.h"
#include "base/status.h"
#include "bootstrap/join.h"
#include "bootstrap/launcher.h"

namespace fsccl {

// The place where the ranks meet; `instance` counts the communicators that this process has made
// from the environment. Rank 0 begins to listen there. `problem`: why this rank cannot join; the
// others are told as far as they can be, and it is returned.
Result<RendezvousPoint> meet_from_environment(const LaunchEnvironment& launch,
                                              const Config& settings, uint64_t instance,
                                              Deadline deadline, Status problem = {});

}  // namespace fsccl
