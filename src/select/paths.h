// Chooses which of a transport's ways bytes go (Channel::path): what is the fastest differs
// with the fabric and the release of its library. Two ranks at the ends of each class of link try
// them when a communicator starts, a few milliseconds in all, and all ranks take what they found
// for peers of that class.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "select/startup.h"
#include "topo/connection.h"

namespace fsccl {

// By class of link; way 0 where nothing was found.
using Paths = std::array<uint8_t, topo::kLinkClasses>;

// `links`: what lies between rank 0 and each rank. Collective; uses ticks from *tick on and leaves
// the next unused one there.
Paths find_paths(const Startup& startup, const std::vector<topo::LinkClass>& links, uint32_t* tick);

// The name of the way that bytes for such peers go; null: there is but one, without a name.
const char* path_name(const Channel& channel, const Paths& paths, topo::LinkClass link);

}  // namespace fsccl
