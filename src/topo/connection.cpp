#include "topo/connection.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace fsccl::topo {
namespace {

// The class of the edge between a vertex and its parent.
LinkClass class_above(Kind kind, Kind parent) {
  switch (kind) {
    case Kind::core:
      return parent == Kind::cache  ? LinkClass::cache
             : parent == Kind::numa ? LinkClass::numa
                                    : LinkClass::package;
    case Kind::cache:
      return parent == Kind::package || parent == Kind::host ? LinkClass::package : LinkClass::numa;
    case Kind::numa:
      return parent == Kind::host ? LinkClass::host : LinkClass::package;
    case Kind::package:
      return LinkClass::host;
    default:
      return LinkClass::pcie;
  }
}

LinkClass class_across(Kind a, Kind b) {
  const auto is_network = [](Kind kind) {
    return kind == Kind::network_switch || kind == Kind::nic;
  };
  return is_network(a) || is_network(b) ? LinkClass::network : LinkClass::nvlink;
}

}  // namespace

Graph::Graph(const Topology& topology) : topology_(topology), edges_(topology.vertices.size()) {
  const auto add = [&](int a, int b, LinkClass link, double gb_per_s) {
    const double width = gb_per_s > 0 ? gb_per_s : traits(link).gb_per_s;
    edges_[static_cast<size_t>(a)].push_back({b, link, width});
    edges_[static_cast<size_t>(b)].push_back({a, link, width});
  };
  for (size_t i = 0; i < topology.vertices.size(); i++) {
    const Vertex& vertex = topology.vertices[i];
    // An NVLink switch lies in its host, but only NVLinks lead to it.
    if (vertex.parent < 0 || vertex.kind == Kind::nv_switch) continue;
    add(static_cast<int>(i), vertex.parent,
        class_above(vertex.kind, topology.vertices[static_cast<size_t>(vertex.parent)].kind),
        vertex.gb_per_s);
  }
  for (const Link& link : topology.links) {
    const Vertex &a = topology.vertices[static_cast<size_t>(link.a)],
                 &b = topology.vertices[static_cast<size_t>(link.b)];
    if (!a.down && !b.down) add(link.a, link.b, class_across(a.kind, b.kind), link.gb_per_s);
  }
}

// How a place was reached. A way inside the host, however narrow, is preferred to any way over a
// network.
struct Graph::Reached {
  LinkClass link = LinkClass::core;
  double gb_per_s = 0;
  int hops = 0;  // edges
  int before = -1;
  std::array<int, kLinkClasses> of_class{};  // edges
  bool better_than(const Reached& other) const {
    const bool network = link == LinkClass::network,
               other_network = other.link == LinkClass::network;
    return std::tuple(!network, gb_per_s, -hops) >
           std::tuple(!other_network, other.gb_per_s, -other.hops);
  }
};

// Dijkstra's algorithm, which applies because an extended way is never better. It finds the
// greatest width. If two ways to a vertex differ in width, but a later edge narrows both to the
// same width, the shorter one may be missed.
std::vector<Graph::Reached> Graph::reach(int from) const {
  std::vector<Reached> best(edges_.size());
  std::vector<bool> known(best.size()), settled(best.size());
  const auto worse = [](const std::pair<Reached, int>& a, const std::pair<Reached, int>& b) {
    return b.first.better_than(a.first);
  };
  std::priority_queue<std::pair<Reached, int>, std::vector<std::pair<Reached, int>>,
                      decltype(worse)>
      queue(worse);
  queue.push({Reached{LinkClass::core, 1e12, 0, -1, {}}, from});
  while (!queue.empty()) {
    const auto [way, vertex] = queue.top();
    queue.pop();
    const auto at = static_cast<size_t>(vertex);
    if (settled[at]) continue;
    settled[at] = true;
    best[at] = way;
    if (vertex != from && topology_.vertices[at].kind == Kind::gpu)
      continue;  // a GPU passes nothing on
    for (const Edge& edge : edges_[at]) {
      if (settled[static_cast<size_t>(edge.to)]) continue;
      Reached next = way;
      next.before = vertex;
      next.hops++;
      next.gb_per_s = std::min(way.gb_per_s, edge.gb_per_s);
      next.of_class[static_cast<size_t>(edge.link)]++;
      next.link = std::max(way.link, edge.link);
      queue.push({next, edge.to});
    }
  }
  for (size_t i = 0; i < best.size(); i++)
    if (!settled[i]) best[i].hops = -1;
  return best;
}

Connection Graph::describe(const Reached& reached) {
  if (reached.hops < 0) return {};
  if (reached.hops == 0) return {LinkClass::core, 0, traits(LinkClass::core).gb_per_s, {}};
  double ns = 0;
  for (size_t i = 0; i < reached.of_class.size(); i++)
    if (const int edges = reached.of_class[i])
      ns = std::max(ns, traits(static_cast<LinkClass>(i)).ns * (1 + std::max(0, edges - 2) / 2.0));
  return {reached.link, ns, reached.gb_per_s, {}};
}

const LinkTraits& traits(LinkClass link) {
  static constexpr std::array<LinkTraits, kLinkClasses> kTraits{
      {{"core", "one core", 20, 40},
       {"cache", "cores that share a cache", 110, 25},
       {"nvlink", "NVLink", 1000, 150},
       {"numa", "caches of one memory node", 150, 22},
       {"pcie", "devices below one PCI bridge", 800, 24},
       {"package", "memory nodes of one package", 200, 20},
       {"host", "packages of one host", 300, 16},
       {"network", "hosts", 3000, 1.25}}};
  return kTraits[static_cast<size_t>(link)];
}

std::vector<Connection> Graph::from(int vertex) const {
  std::vector<Connection> result;
  for (const Reached& reached : reach(vertex)) result.push_back(describe(reached));
  return result;
}

Connection Graph::between(int from, int to) const {
  const std::vector<Reached> best = reach(from);
  Connection found = describe(best[static_cast<size_t>(to)]);
  if (best[static_cast<size_t>(to)].hops < 0) return found;
  for (int vertex = to; vertex >= 0; vertex = best[static_cast<size_t>(vertex)].before)
    found.vertices.push_back(vertex);
  std::reverse(found.vertices.begin(), found.vertices.end());
  return found;
}

}  // namespace fsccl::topo
