// Chooses the path that bytes take in a transport which has several (Channel::path). The fastest
// path differs with the fabric and the release of its library. When a communicator starts, two
// ranks at the ends of each class of link try the paths, which takes a few milliseconds. All ranks
// then use the path that these two have found for peers of that class.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "select/startup.h"
#include "topo/connection.h"

namespace fsccl {

// The path of each class of link. It is path 0 if nothing was found.
using Paths = std::array<uint8_t, topo::kLinkClasses>;

// Finds the paths. `links` has the class of the link between rank 0 and each rank. Collective. Uses
// ticks from *tick on and leaves the next unused one there.
Paths find_paths(const Startup& startup, const std::vector<topo::LinkClass>& links, uint32_t* tick);

// Returns the name of the path for peers of this class, or null if the transport has one path
// without a name.
const char* path_name(const Channel& channel, const Paths& paths, topo::LinkClass link);

}  // namespace fsccl
