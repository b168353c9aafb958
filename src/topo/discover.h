// Finds out what a machine is made of: with hwloc, which is loaded when it is there, and what hwloc does not tell from /sys and, of
// NVIDIA's GPUs, with NVML.
#pragma once
#include <string>

#include "base/status.h"
#include "topo/topology.h"

namespace fsccl::topo {

// This machine, as far as this process may use it. Without hwloc: one package with the processors that there are.
Topology discover();
// What hwloc's XML file says of some machine. FSCCL_ERR_NOT_AVAILABLE without hwloc.
Result<Topology> discover_xml(const std::string& path);

}  // namespace fsccl::topo
