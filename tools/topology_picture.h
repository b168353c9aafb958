// Draws a topology: boxes in boxes, as the parts of a host contain each other, devices below them,
// switches below all hosts, a line for each link, and a legend with the bandwidth of each class of
// links. Names are drawn over the lines.
#pragma once
#include <string>

#include "machine_graph.h"

// Returns a self-contained SVG; at most 4 hosts of a group are drawn. With `ranks_per_host` it
// marks where the ranks of a job sit that counts them host by host: on the GPUs of a host that has
// some, in their order, and otherwise on its cores.
std::string topology_picture(const fsccl::machine_graph::Graph& graph, int ranks_per_host);
