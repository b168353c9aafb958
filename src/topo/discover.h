// Finds out what a machine is made of: with hwloc, which is loaded when it is there, and what hwloc
// does not tell from /sys and, of NVIDIA's GPUs, with NVML.
#pragma once
#include <string>

#include "base/status.h"
#include "topo/topology.h"

namespace fsccl::topo {

// This machine, as far as this process may use it. Without hwloc: one package with the processors
// that there are.
Topology discover();
// Returns the machine of hwloc's XML, whose text is not trusted. `source` is its name in errors.
// Elements below an element that is not checked are ignored.
Result<Topology> parse_xml(const std::string& text, const std::string& source);

}  // namespace fsccl::topo
