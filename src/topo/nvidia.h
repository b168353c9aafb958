// Asks NVIDIA's driver for the names and the memory of known GPUs, and for the NVLinks between
// them.
#pragma once
#include <vector>

#include "topo/topology.h"

namespace fsccl::topo {

struct PciGpu {
  int vertex;  // in the topology
  unsigned domain, bus, device;
};

// Adds what the driver reports to the topology; all GPUs are of one host. Without NVML, or without
// a driver, nothing is added. The NVLink switches of a host are one vertex, because a GPU uses all
// of them at once.
void ask_nvidia(const std::vector<PciGpu>& gpus, Topology* topology);

}  // namespace fsccl::topo
