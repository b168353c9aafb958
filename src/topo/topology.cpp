#include "topo/topology.h"

#include <array>

namespace fsccl::topo {

std::string_view kind_name(Kind kind) {
  static constexpr std::array<std::string_view, kKinds> kNames{
      "host", "package", "numa", "cache",     "core",
      "pci",  "gpu",     "nic",  "nv_switch", "network_switch"};
  return kNames[static_cast<size_t>(kind)];
}

int Topology::host_of(int node) const {
  while (nodes[static_cast<size_t>(node)].parent >= 0)
    node = nodes[static_cast<size_t>(node)].parent;
  return node;
}

std::string Topology::path(int node) const {
  const int host = host_of(node);
  const std::string& name = nodes[static_cast<size_t>(node)].name;
  return host == node ? name : nodes[static_cast<size_t>(host)].name + "/" + name;
}

int Topology::find(std::string_view path) const {
  const size_t slash = path.find('/');
  const std::string_view host = path.substr(0, slash),
                         name = slash == path.npos ? "" : path.substr(slash + 1);
  int found = -1;
  for (size_t i = 0; i < nodes.size(); i++) {
    const int node = static_cast<int>(i);
    const bool is_root = nodes[i].parent < 0;
    if (is_root != (slash == path.npos)) continue;
    if (nodes[static_cast<size_t>(host_of(node))].name != host ||
        (!is_root && nodes[i].name != name))
      continue;
    if (found >= 0) return -1;
    found = node;
  }
  return found;
}

std::vector<int> Topology::all(Kind kind, int host) const {
  std::vector<int> result;
  for (size_t i = 0; i < nodes.size(); i++)
    if (nodes[i].kind == kind && (host < 0 || host_of(static_cast<int>(i)) == host))
      result.push_back(static_cast<int>(i));
  return result;
}

Tree::Tree(const Topology& topology) : below_(topology.nodes.size() + 1) {
  for (size_t i = 0; i < topology.nodes.size(); i++)
    below_[static_cast<size_t>(topology.nodes[i].parent + 1)].push_back(static_cast<int>(i));
}

}  // namespace fsccl::topo
