// A graph of everything that moves bytes between ranks: machines as trees of packages, memory,
// caches, cores and devices; network switches beside them; and links across. Nothing here measures
// or decides: discover.h finds the topology out, file.h keeps it, and connection.h says how far two
// places are from each other.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsccl::topo {

// A host has packages, a package memory (NUMA nodes), memory caches that cores share, a cache
// cores; levels that say nothing may be missing. Devices hang below a PCI bridge, which hangs where
// its lanes end. nv_switch belongs to a host, network_switch to none.
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
  // index in Topology::vertices, always a smaller one; -1: a host, or a network switch
  int parent = -1;
  // unlike those of its siblings; of a device, a switch and a host, unlike all others of the host
  std::string name;
  std::string model;      // as the maker calls it; empty: unknown
  uint64_t bytes = 0;     // size of memory or of a cache
  std::vector<int> cpus;  // the system's numbers of a core's hardware threads, ascending
  double gb_per_s = 0;    // to the parent, one way, 10^9 bytes; 0: unknown
  bool down = false;      // a network card without a carrier
};

// Beside the trees: NVLink, network.
struct Link {
  int a = 0, b = 0;
  double gb_per_s = 0;  // one way; 0: unknown
};

struct Topology {
  std::vector<Vertex> vertices;
  std::vector<Link> links;

  int host_of(int vertex) const;       // the root above a vertex
  std::string path(int vertex) const;  // "host/name", "host" or "switch": what find() takes
  // -1: there is none, or there are several.
  int find(std::string_view path) const;
  std::vector<int> all(Kind kind, int host = -1) const;
};

// The children of each vertex, made once for a topology that does not change meanwhile.
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
