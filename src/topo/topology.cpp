#include "topo/topology.h"

#include <array>

namespace fsccl::topo {

std::string_view kind_name(Kind kind) {
  static constexpr std::array<std::string_view, kKinds> kNames{
      "host", "package", "numa", "cache",     "core",
      "pci",  "gpu",     "nic",  "nv_switch", "network_switch"};
  return kNames[static_cast<size_t>(kind)];
}

int Topology::host_of(int vertex) const {
  while (vertices[static_cast<size_t>(vertex)].parent >= 0)
    vertex = vertices[static_cast<size_t>(vertex)].parent;
  return vertex;
}

std::string Topology::path(int vertex) const {
  const int host = host_of(vertex);
  const std::string& name = vertices[static_cast<size_t>(vertex)].name;
  return host == vertex ? name : vertices[static_cast<size_t>(host)].name + "/" + name;
}

int Topology::find(std::string_view path) const {
  const size_t slash = path.find('/');
  const std::string_view host = path.substr(0, slash),
                         name = slash == path.npos ? "" : path.substr(slash + 1);
  int found = -1;
  for (size_t i = 0; i < vertices.size(); i++) {
    const int vertex = static_cast<int>(i);
    const bool is_root = vertices[i].parent < 0;
    if (is_root != (slash == path.npos)) continue;
    if (vertices[static_cast<size_t>(host_of(vertex))].name != host ||
        (!is_root && vertices[i].name != name))
      continue;
    if (found >= 0) return -1;
    found = vertex;
  }
  return found;
}

std::vector<int> Topology::all(Kind kind, int host) const {
  std::vector<int> result;
  for (size_t i = 0; i < vertices.size(); i++)
    if (vertices[i].kind == kind && (host < 0 || host_of(static_cast<int>(i)) == host))
      result.push_back(static_cast<int>(i));
  return result;
}

Tree::Tree(const Topology& topology) : below_(topology.vertices.size() + 1) {
  for (size_t i = 0; i < topology.vertices.size(); i++)
    below_[static_cast<size_t>(topology.vertices[i].parent + 1)].push_back(static_cast<int>(i));
}

}  // namespace fsccl::topo
