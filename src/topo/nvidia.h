// Asks NVIDIA's driver about GPUs that are known already: their names, their memory, and the
// NVLinks between them.
#pragma once
#include <vector>

#include "topo/topology.h"

namespace fsccl::topo {

struct PciGpu {
  int vertex;  // in the topology
  unsigned domain, bus, device;
};

// All of one host. Without NVML, or without a driver, nothing is added. The NVLink switches of a
// host are one vertex: a GPU uses all of them at once.
void ask_nvidia(const std::vector<PciGpu>& gpus, Topology* topology);

}  // namespace fsccl::topo
