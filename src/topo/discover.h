// Finds out what a machine consists of: with hwloc, which is loaded if it is installed, from /sys
// for what hwloc does not report, and with NVML for NVIDIA's GPUs.
#pragma once
#include <string>

#include "base/status.h"
#include "topo/topology.h"

namespace fsccl::topo {

// Returns this machine as far as this process may use it. Without hwloc it is one package with the
// available processors.
Topology discover();
// Returns the machine of hwloc's XML, whose text is not trusted. `source` is its name in errors.
// Elements below an element that is not checked are ignored.
Result<Topology> parse_xml(const std::string& text, const std::string& source);

}  // namespace fsccl::topo
