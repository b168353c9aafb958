// Shows a topology to people as a tree of text. Hosts that have the same structure are shown once.
#pragma once
#include <string>
#include <vector>

#include "topo/topology.h"

namespace fsccl::topo {

// Hosts that have the same structure and links of the same kinds; names may differ.
struct HostGroup {
  std::vector<int> hosts;  // in the topology's order; the first stands for all
};
std::vector<HostGroup> alike(const Topology& topology);

std::string amount(uint64_t bytes);                         // "23.5 GiB"
std::string width(double gb_per_s);                         // "25 GB/s", "? GB/s"
std::string ranges(std::vector<int> numbers);               // "0-3, 8"
std::string hosts_text(const Topology&, const HostGroup&);  // "node0 (and 3 alike: node1 .. node3)"

// Returns the tree, followed by the connections from the cores and devices of the first host to all
// others, by class.
std::string to_tree(const Topology& topology);
// Returns the way between two places, edge by edge.
std::string to_way(const Topology& topology, int from, int to);

}  // namespace fsccl::topo
