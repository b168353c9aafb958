// A topology as a program draws it, read from the JSON of fsccl_topology_describe(): hosts as
// trees, switches beside them, and links across.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fsccl::machine_graph {

// From the outside in; devices and switches come behind what is made of cores.
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
  int parent = -1;  // -1: a host, or a network switch
  std::vector<int> below;
  std::string name, model;
  std::string path;  // "host/name", "host" or "switch": links name their ends so
  uint64_t bytes = 0;
  double gb_per_s = 0;  // to the parent; 0: unknown
  bool down = false;
};

struct Link {
  int a = 0, b = 0;
  double gb_per_s = 0;  // 0: unknown
};

struct Graph {
  std::vector<Vertex> vertices;
  std::vector<Link> links;

  std::vector<int> all(Kind kind) const;
  // Hosts of the same build and with links of the same kinds, names aside, in groups.
  std::vector<std::vector<int>> alike() const;
};

// Throws nlohmann::json::exception where the text is not what the library writes.
Graph read_graph(const std::string& json);

}  // namespace fsccl::machine_graph
