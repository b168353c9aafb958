// A topology as a program draws it, read from the JSON of fsccl_topology_describe(). Hosts are
// trees, network switches stand beside them, and links lead across.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fsccl::machine_graph {

// The order is from the outside to the inside; devices and switches come after the parts that have
// cores.
enum class Kind : uint8_t {
  host,
  package,
  numa,
  cache,
  core,
  pci,
  gpu,
  nic,
  nv_switch,
  network_switch
};
const char* kind_name(Kind kind);

struct Vertex {
  Kind kind{};
  int parent = -1;  // -1 for a host or a network switch
  std::vector<int> below;
  std::string name, model;
  std::string path;  // "host/name", "host" or "switch", by which links name their ends
  uint64_t bytes = 0;
  double gb_per_s = 0;  // to the parent; 0 if unknown
  bool down = false;
};

struct Link {
  int a = 0, b = 0;
  double gb_per_s = 0;  // 0 if unknown
};

struct Graph {
  std::vector<Vertex> vertices;
  std::vector<Link> links;

  std::vector<int> all(Kind kind) const;
  // Returns the hosts in groups. Hosts of a group are built alike, and their devices of the same
  // name have links of the same kinds and bandwidths.
  std::vector<std::vector<int>> alike() const;
};

// Throws nlohmann::json::exception if the text is not what the library writes.
Graph read_graph(const std::string& json);

}  // namespace fsccl::machine_graph
