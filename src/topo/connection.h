// How far two places are from each other: the widest way between them, and among equally wide ones
// the shortest. Its class is that of the worst edge it takes, so two cores below one cache are of
// class `cache`, two GPUs on one NVLink switch of class `nvlink`.
#pragma once
#include <array>

#include "topo/topology.h"

namespace fsccl::topo {

// From near to far.
enum class LinkClass : uint8_t { core, cache, nvlink, numa, pcie, package, host, network };
inline constexpr int kLinkClasses = 8;

struct LinkTraits {
  std::string_view name, meaning;
  double ns;        // until what one side wrote is seen by the other
  double gb_per_s;  // one way, where the topology does not say
};
// The latency of `cache` is what two threads on an AMD EPYC showed whose cores were near each
// other, the bandwidth of `host` what NCCL 2.28 takes for AMD (src/graph/topo.h). All else is
// typical of today's servers, with 10 Gbit/s between hosts, and not measured. They order what
// nothing else is known of; a communicator measures at its start.
const LinkTraits& traits(LinkClass link);

struct Connection {
  LinkClass link{};
  // latency of the slowest class on the way, and half of it for each edge beyond the first two
  double ns = 0;
  double gb_per_s = 0;  // bandwidth of the narrowest edge
  // the way, both ends included; empty: there is none (then the numbers are 0)
  std::vector<int> vertices;
};

// The vertices and the edges between them. Keeps a reference to the topology.
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
