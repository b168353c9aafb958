#include "machine_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

namespace fsccl::machine_graph {
namespace {

using Json = nlohmann::json;

constexpr std::array kNames{"host", "package", "numa", "cache",     "core",
                            "pci",  "gpu",     "nic",  "nv_switch", "network_switch"};

Kind kind_of(const std::string& name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  return found == kNames.end() ? Kind::pci : static_cast<Kind>(found - kNames.begin());
}

void add(Graph& graph, const Json& json, Kind kind, int parent, const std::string& host) {
  const auto index = static_cast<int>(graph.vertices.size());
  Vertex& vertex = graph.vertices.emplace_back();
  vertex.kind = kind;
  vertex.parent = parent;
  vertex.name = json.at("name");
  vertex.path = parent < 0 ? vertex.name : host + "/" + vertex.name;
  vertex.model = json.value("model", "");
  vertex.bytes = json.value("bytes", uint64_t{0});
  vertex.gb_per_s = json.value("gb_per_s", 0.0);
  vertex.down = json.value("down", false);
  if (parent >= 0) graph.vertices[static_cast<size_t>(parent)].below.push_back(index);
  const std::string root = parent < 0 ? vertex.name : host;
  for (const Json& child : json.value("children", Json::array()))
    add(graph, child, kind_of(child.at("kind")), index, root);
}

// Describes a vertex and what is below it without their names. Hosts with equal descriptions are
// alike.
std::string signature(const Graph& graph, int index) {
  const Vertex& vertex = graph.vertices[static_cast<size_t>(index)];
  std::string text = fmt::format("{}|{}|{}|{}|{}(", kind_name(vertex.kind), vertex.model,
                                 vertex.bytes, vertex.gb_per_s, vertex.down);
  for (const int child : vertex.below) text += signature(graph, child);
  return text + ")";
}

int root_of(const Graph& graph, int index) {
  while (graph.vertices[static_cast<size_t>(index)].parent >= 0)
    index = graph.vertices[static_cast<size_t>(index)].parent;
  return index;
}

}  // namespace

const char* kind_name(Kind kind) { return kNames[static_cast<size_t>(kind)]; }

std::vector<int> Graph::all(Kind kind) const {
  std::vector<int> found;
  for (size_t i = 0; i < vertices.size(); i++)
    if (vertices[i].kind == kind) found.push_back(static_cast<int>(i));
  return found;
}

std::vector<std::vector<int>> Graph::alike() const {
  std::map<int, std::string> ends;
  for (const Link& link : links)
    for (const auto& [near, far] : {std::pair(link.a, link.b), std::pair(link.b, link.a)})
      ends[root_of(*this, near)] +=
          fmt::format("{}-{}-{}", vertices[static_cast<size_t>(near)].name,
                      kind_name(vertices[static_cast<size_t>(far)].kind), link.gb_per_s);
  std::vector<std::vector<int>> groups;
  std::map<std::string, size_t> known;
  for (const int host : all(Kind::host)) {
    const auto [entry, first] = known.emplace(signature(*this, host) + ends[host], groups.size());
    if (first) groups.emplace_back();
    groups[entry->second].push_back(host);
  }
  return groups;
}

Graph read_graph(const std::string& text) {
  const Json json = Json::parse(text);
  Graph graph;
  for (const Json& host : json.at("hosts")) add(graph, host, Kind::host, -1, "");
  for (const Json& name : json.at("switches"))
    add(graph, {{"name", name}}, Kind::network_switch, -1, "");
  std::map<std::string, int> by_path;
  for (size_t i = 0; i < graph.vertices.size(); i++)
    by_path.emplace(graph.vertices[i].path, static_cast<int>(i));
  for (const Json& link : json.at("links"))
    graph.links.push_back(
        {by_path.at(link.at("a")), by_path.at(link.at("b")), link.value("gb_per_s", 0.0)});
  return graph;
}

}  // namespace fsccl::machine_graph
