// Topologies as files: hwloc's XML of one machine (`lstopo machine.xml`), and JSON of any number of
// hosts:
//   {"fsccl_topology": 1,
//    "hosts": [{"name": "node{}", "repeat": 4, "model": "..",
//               "children": [{"kind": "package", "name": "package0", "children": ..}]}],
//    "switches": ["rail0", "rail1"],
//    "links": [{"a": "node{}/nic0", "b": "rail0", "gb_per_s": 50}]}
// A vertex has "kind" and "name", and may have "model", "bytes", "cpus" (a core's list), "gb_per_s"
// (to its parent), "down" and "children". "repeat" is a number of copies; their numbers begin at
// "first" (0) and replace {} in the name. Cores without "cpus" have one processor each, numbered
// through the host. A link of hosts that repeat stands for one link of each copy. The output of
// to_json() contains no "repeat".
#pragma once
#include <string>

#include "base/status.h"
#include "topo/topology.h"

namespace fsccl::topo {

// Errors name the file, the place in it and what was expected. Files are not trusted.
Result<Topology> load_file(const std::string& path);
Result<Topology> parse_json(const std::string& text, const std::string& source);
std::string to_json(const Topology& topology);

}  // namespace fsccl::topo
