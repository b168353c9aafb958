#include "topo/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "topo/connection.h"

namespace fsccl::topo {
namespace {

// Returns a description of the host without its names; hosts with equal descriptions are alike.
std::string signature(const Topology& topology, const Tree& tree, int vertex) {
  const Vertex& root = topology.vertices[static_cast<size_t>(vertex)];
  std::string text = fmt::format("{}|{}|{}|{}|{}|{}(", kind_name(root.kind), root.model, root.bytes,
                                 root.cpus.size(), root.gb_per_s, root.down);
  for (const int child : tree.below(vertex)) text += signature(topology, tree, child);
  return text + ")";
}

std::string label(const Vertex& vertex) {
  std::string text = vertex.name;
  if (vertex.kind == Kind::pci) text += " (PCI bridge)";
  if (!vertex.model.empty()) text += ": " + vertex.model;
  if (vertex.bytes)
    text += fmt::format("{} {}", vertex.model.empty() ? ":" : ",", amount(vertex.bytes));
  if (vertex.gb_per_s > 0) text += ", " + width(vertex.gb_per_s);
  if (vertex.kind == Kind::nic && vertex.down) text += ", down";
  return text;
}

std::string cores_text(const Topology& topology, const std::vector<int>& cores) {
  std::vector<int> cpus;
  for (const int core : cores) {
    const std::vector<int>& threads = topology.vertices[static_cast<size_t>(core)].cpus;
    cpus.insert(cpus.end(), threads.begin(), threads.end());
  }
  return fmt::format("{} core{}, processor{} {}", cores.size(), cores.size() == 1 ? "" : "s",
                     cpus.size() == 1 ? "" : "s", ranges(std::move(cpus)));
}

void add_tree(const Topology& topology, const Tree& tree, int vertex, const std::string& indent,
              std::string* text) {
  std::vector<int> cores, others;
  for (const int child : tree.below(vertex))
    (topology.vertices[static_cast<size_t>(child)].kind == Kind::core ? cores : others)
        .push_back(child);
  if (!cores.empty())
    *text += indent + (others.empty() ? "└─ " : "├─ ") + cores_text(topology, cores) + "\n";
  for (const int child : others) {
    const bool last = child == others.back();
    *text += indent + (last ? "└─ " : "├─ ") +
             label(topology.vertices[static_cast<size_t>(child)]) + "\n";
    add_tree(topology, tree, child, indent + (last ? "   " : "│  "), text);
  }
}

constexpr size_t kMostSteps = 20'000'000;  // in the search for examples: some seconds

bool an_end(Kind kind) { return kind == Kind::core || kind == Kind::gpu || kind == Kind::nic; }

// Writes the connections between the first host of each group and all others.
void add_connections(const Topology& topology, const std::vector<HostGroup>& groups,
                     std::string* text) {
  struct Example {
    int from, to;
    double ns;
  };
  std::map<std::tuple<Kind, Kind, LinkClass, double>, Example> kept;
  const Graph graph(topology);
  size_t sources = std::max<size_t>(8, kMostSteps / (topology.vertices.size() + 1));
  // Each place is noted with its parent: one child of a kind is enough, because its siblings have
  // the same distance.
  std::set<std::pair<Kind, int>> seen;
  std::map<int, std::vector<size_t>> ends;  // by host
  for (size_t i = 0; i < topology.vertices.size(); i++)
    if (an_end(topology.vertices[i].kind)) ends[topology.host_of(static_cast<int>(i))].push_back(i);
  for (const HostGroup& group : groups)
    for (const size_t i : ends[group.hosts.front()]) {
      const int from = static_cast<int>(i);
      if (sources == 0 ||
          !seen.emplace(topology.vertices[i].kind, topology.vertices[i].parent).second)
        continue;
      sources--;
      const std::vector<Connection> all = graph.from(from);
      for (size_t to = 0; to < all.size(); to++) {
        const Kind a = topology.vertices[i].kind, b = topology.vertices[to].kind;
        if (to == i || !an_end(b) || b < a || all[to].gb_per_s <= 0) continue;
        kept.try_emplace({a, b, all[to].link, all[to].gb_per_s},
                         Example{from, static_cast<int>(to), all[to].ns});
      }
    }
  *text += fmt::format("\n{:<12} {:<9} {:>11} {:>12}   {}\n", "between", "class", "latency",
                       "bandwidth", "for example");
  for (const auto& [key, example] : kept) {
    const auto& [a, b, link, gb_per_s] = key;
    *text += fmt::format("{:<12} {:<9} {:>8.0f} ns {:>12}   {} - {}\n",
                         fmt::format("{} - {}", kind_name(a), kind_name(b)), traits(link).name,
                         example.ns, width(gb_per_s), topology.path(example.from),
                         topology.path(example.to));
  }
}

}  // namespace

std::vector<HostGroup> alike(const Topology& topology) {
  const Tree tree(topology);
  std::vector<HostGroup> groups;
  std::map<std::string, size_t> known;
  std::map<int, std::vector<std::string>> links;
  for (const Link& link : topology.links)
    for (const auto& [near, far] : {std::pair(link.a, link.b), std::pair(link.b, link.a)})
      links[topology.host_of(near)].push_back(
          fmt::format("{}-{}-{}", topology.vertices[static_cast<size_t>(near)].name,
                      kind_name(topology.vertices[static_cast<size_t>(far)].kind), link.gb_per_s));
  for (const int host : topology.all(Kind::host)) {
    std::string text = signature(topology, tree, host);
    for (const std::string& link : links[host]) text += link;
    const auto [entry, first] = known.emplace(std::move(text), groups.size());
    if (first) groups.emplace_back();
    groups[entry->second].hosts.push_back(host);
  }
  return groups;
}

std::string amount(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, unit++;
  return fmt::format("{:.4g} {}", value, kUnits[unit]);
}

std::string width(double gb_per_s) {
  return gb_per_s > 0 ? fmt::format("{:.3g} GB/s", gb_per_s) : "? GB/s";
}

std::string ranges(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) end++;
    text += fmt::format("{}{}", i ? ", " : "", numbers[i]);
    if (end > i) text += fmt::format("-{}", numbers[end]);
    i = end + 1;
  }
  return text;
}

std::string hosts_text(const Topology& topology, const HostGroup& group) {
  const auto name = [&](int host) { return topology.vertices[static_cast<size_t>(host)].name; };
  const size_t others = group.hosts.size() - 1;
  std::string text = name(group.hosts.front());
  if (others == 1) text += fmt::format(" (and one alike: {})", name(group.hosts[1]));
  if (others > 1)
    text += fmt::format(" (and {} alike: {} .. {})", others, name(group.hosts[1]),
                        name(group.hosts.back()));
  return text;
}

std::string to_tree(const Topology& topology) {
  std::string text;
  const Tree tree(topology);
  const std::vector<HostGroup> groups = alike(topology);
  for (const HostGroup& group : groups) {
    const Vertex& host = topology.vertices[static_cast<size_t>(group.hosts.front())];
    text += hosts_text(topology, group) + (host.model.empty() ? "" : ": " + host.model) + "\n";
    add_tree(topology, tree, group.hosts.front(), "", &text);
  }
  std::vector<std::string> switches;
  for (const int vertex : topology.all(Kind::network_switch))
    switches.push_back(topology.vertices[static_cast<size_t>(vertex)].name);
  if (!switches.empty()) text += fmt::format("network switches: {}\n", fmt::join(switches, ", "));
  if (!topology.links.empty())
    text += fmt::format("{} links between devices and switches\n", topology.links.size());
  add_connections(topology, groups, &text);
  return text;
}

std::string to_way(const Topology& topology, int from, int to) {
  const Connection found = Graph(topology).between(from, to);
  if (found.vertices.empty())
    return fmt::format("There is no way from {} to {}.\n", topology.path(from), topology.path(to));
  std::vector<std::string> names;
  for (const int vertex : found.vertices) names.push_back(topology.path(vertex));
  return fmt::format("{} ({}), {:.0f} ns, {}\n{}\n", traits(found.link).name,
                     traits(found.link).meaning, found.ns, width(found.gb_per_s),
                     fmt::join(names, " - "));
}

}  // namespace fsccl::topo
