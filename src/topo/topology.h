// A graph of everything that moves bytes between ranks: machines as trees of packages, memory,
// caches, cores and devices; network switches outside the trees; and links between vertices of the
// trees and switches. This file only stores the graph: discover.h finds a topology, file.h reads
// and writes it, and connection.h computes distances.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsccl::topo {

// The levels of a machine from the top: host, package, memory (NUMA node), cache shared by cores,
// and core. Levels that say nothing may be missing. Devices hang below a PCI bridge, which hangs
// where its lanes end. An nv_switch belongs to a host, a network_switch to none.
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
inline constexpr int kKinds = 10;
std::string_view kind_name(Kind kind);

struct Vertex {
  Kind kind{};
  // the parent's index in Topology::vertices, which is smaller; -1 for hosts and network switches
  int parent = -1;
  // unique among siblings; for a device, a switch or a host, unique in the whole host
  std::string name;
  std::string model;      // as the maker calls it; empty: unknown
  uint64_t bytes = 0;     // size of memory or of a cache
  std::vector<int> cpus;  // the system's numbers of a core's hardware threads, ascending
  double gb_per_s = 0;    // to the parent, one way, 10^9 bytes; 0: unknown
  bool down = false;      // a network card without a carrier
};

// A link outside the trees: NVLink or network.
struct Link {
  int a = 0, b = 0;
  double gb_per_s = 0;  // one way; 0: unknown
};

struct Topology {
  std::vector<Vertex> vertices;
  std::vector<Link> links;

  int host_of(int vertex) const;       // the root above a vertex
  std::string path(int vertex) const;  // "host/name", "host" or "switch": what find() takes
  // Returns -1 if there is no such vertex, or more than one.
  int find(std::string_view path) const;
  std::vector<int> all(Kind kind, int host = -1) const;
};

// The children of each vertex. The topology must not change while a Tree lives.
class Tree {
 public:
  explicit Tree(const Topology& topology);
  const std::vector<int>& below(int vertex) const {
    return below_[static_cast<size_t>(vertex + 1)];
  }
  const std::vector<int>& roots() const { return below_[0]; }

 private:
  std::vector<std::vector<int>> below_;
};

}  // namespace fsccl::topo
