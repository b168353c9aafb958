// The distance of two places is that of the widest way between them, and among equally wide ones of
// the shortest. The class of a way is that of its worst edge, so two cores below one cache are of
// class `cache`, and two GPUs on one NVLink switch of class `nvlink`.
#pragma once
#include <array>

#include "topo/topology.h"

namespace fsccl::topo {

// The classes in order, from the nearest to the farthest.
enum class LinkClass : uint8_t { core, cache, nvlink, numa, pcie, package, host, network };
inline constexpr int kLinkClasses = 8;

struct LinkTraits {
  std::string_view name, meaning;
  double ns;        // until what one side wrote is seen by the other
  double gb_per_s;  // one way, where the topology does not say
};
// The latency of `cache` was measured between two threads on near cores of an AMD EPYC; the
// bandwidth of `host` is what NCCL 2.28 assumes for AMD (src/graph/topo.h). All other values are
// typical of current servers, with 10 Gbit/s between hosts, and not measured. They serve where
// nothing better is known; a communicator measures when it starts.
const LinkTraits& traits(LinkClass link);

struct Connection {
  LinkClass link{};
  // the latency of the slowest class on the way, plus half of it for each edge beyond the first two
  double ns = 0;
  double gb_per_s = 0;  // bandwidth of the narrowest edge
  // the vertices of the way, both ends included; empty if there is no way (the numbers are then 0)
  std::vector<int> vertices;
};

// The vertices of a topology and the edges between them. A Graph keeps a reference to the topology.
class Graph {
 public:
  explicit Graph(const Topology& topology);
  std::vector<Connection> from(int vertex) const;  // to each vertex; without the ways
  Connection between(int from, int to) const;

 private:
  struct Edge {
    int to;
    LinkClass link;
    double gb_per_s;
  };
  struct Reached;
  std::vector<Reached> reach(int from) const;
  static Connection describe(const Reached& reached);

  const Topology& topology_;
  std::vector<std::vector<Edge>> edges_;  // edges of each vertex
};

}  // namespace fsccl::topo
