#include "topo/file.h"

#include <algorithm>
#include <map>

#include "base/json_file.h"
#include "base/json_writer.h"
#include "topo/discover.h"

namespace fsccl::topo {
namespace {

constexpr size_t kMostFileBytes = size_t{16} << 20;
constexpr size_t kMostVertices = 1'000'000, kMostLinks = 1'000'000;
constexpr int kMostDepth = 32;
constexpr int kMostRepeats = 100'000;
constexpr double kMostGbPerS = 1e6;

// The kinds that may hang below each kind.
bool belongs(Kind kind, Kind parent) {
  switch (kind) {
    case Kind::package:
      return parent == Kind::host || parent == Kind::numa;
    case Kind::numa:
      return parent == Kind::host || parent == Kind::package;
    case Kind::cache:
      return parent <= Kind::cache;
    case Kind::core:
      return parent <= Kind::cache;
    case Kind::pci:
      return parent <= Kind::numa || parent == Kind::pci;
    case Kind::gpu:
    case Kind::nic:
      return parent <= Kind::numa || parent == Kind::pci;
    case Kind::nv_switch:
      return parent == Kind::host;
    default:
      return false;
  }
}

bool device(Kind kind) { return kind >= Kind::gpu; }

class Reader : JsonReader {
 public:
  explicit Reader(const std::string& source) : JsonReader(source) {}

  Result<Topology> read(const Json& json) {
    if (!object(json, "the document", {"fsccl_topology", "hosts", "switches", "links"}) ||
        !hosts(json) || !switches(json) || !links(json))
      return problem();
    return std::move(topology_);
  }

 private:
  bool whole(const Json& json, const char* key, const std::string& place, int least, int* value) {
    if (!json.contains(key)) return true;
    if (!json[key].is_whole(least, kMostRepeats))
      return wrong("{}.{} must be a whole number from {} to {}", place, key, least, kMostRepeats);
    *value = json[key].get<int>();
    return true;
  }

  static std::string numbered(std::string name, int number) {
    const size_t at = name.find("{}");
    return at == name.npos ? name : name.replace(at, 2, std::to_string(number));
  }

  bool hosts(const Json& json) {
    if (!json.contains("fsccl_topology") || json["fsccl_topology"] != 1)
      return wrong(
          "\"fsccl_topology\" must be 1, the version of the format that this library knows");
    if (!json.contains("hosts") || !json["hosts"].is_array() || json["hosts"].empty())
      return wrong("\"hosts\" must be a list of at least one host");
    for (size_t i = 0; i < json["hosts"].size(); i++)
      if (!copies(json["hosts"][i], Kind::host, -1, fmt::format("hosts[{}]", i), 0)) return false;
    return true;
  }

  // Adds the vertex, or its copies, with everything below.
  bool copies(const Json& json, Kind kind, int parent, const std::string& place, int depth) {
    if (!object(json, place,
                {"kind", "name", "model", "bytes", "cpus", "gb_per_s", "down", "repeat", "first",
                 "children"}))
      return false;
    if (depth > kMostDepth) return wrong("{} lies deeper than {} levels", place, kMostDepth);
    int repeat = 1, first = 0;
    std::string name;
    if (!whole(json, "repeat", place, 1, &repeat) || !whole(json, "first", place, 0, &first) ||
        !text(json, "name", place, true, &name))
      return false;
    if (name.find('/') != name.npos)
      return wrong("{}.name \"{}\" has a slash, which divides a host's name from a device's", place,
                   name);
    if (json.contains("repeat") && name.find("{}") == name.npos)
      return wrong("{} repeats: its name needs {{}}, which the number of the copy takes", place);
    for (int i = 0; i < repeat; i++) {
      if (kind == Kind::host) cpus_ = 0;
      const int number = kind == Kind::core && !json.contains("cpus") ? cpus_ : first + i;
      if (!vertex(json, kind, parent, place, depth, numbered(name, number), i)) return false;
    }
    return true;
  }

  bool vertex(const Json& json, Kind kind, int parent, const std::string& place, int depth,
              const std::string& name, int copy) {
    if (topology_.vertices.size() >= kMostVertices)
      return wrong("there are more than {} vertices", kMostVertices);
    Vertex made;
    made.kind = kind;
    made.parent = parent;
    made.name = name;
    double bytes = 0;
    if (!text(json, "model", place, false, &made.model) ||
        !number(json, "bytes", place, 1e18, &bytes) ||
        !number(json, "gb_per_s", place, kMostGbPerS, &made.gb_per_s) ||
        !cpus(json, place, copy, &made))
      return false;
    made.bytes = static_cast<uint64_t>(bytes);
    if (json.contains("down") && !json["down"].is_boolean())
      return wrong("{}.down must be true or false", place);
    made.down = json.contains("down") && json["down"].get<bool>();
    const int index = static_cast<int>(topology_.vertices.size());
    const int host = parent < 0 ? index : topology_.host_of(parent);
    if (!names_.emplace(std::pair(device(kind) ? host : parent, name), index).second)
      return wrong("{}: there are two \"{}\"", place, name);
    topology_.vertices.push_back(std::move(made));
    if (!json.contains("children")) return true;
    if (!json["children"].is_array()) return wrong("{}.children must be a list", place);
    for (size_t i = 0; i < json["children"].size(); i++) {
      const Json& child = json["children"][i];
      const std::string below = fmt::format("{}.children[{}]", place, i);
      Kind child_kind{};
      if (!child.is_object()) return wrong("{} must be an object", below);
      if (!kind_of(child, below, &child_kind)) return false;
      if (!belongs(child_kind, kind))
        return wrong("{}: a {} cannot hang below a {}", below, kind_name(child_kind),
                     kind_name(kind));
      if (!copies(child, child_kind, index, below, depth + 1)) return false;
    }
    return true;
  }

  bool kind_of(const Json& json, const std::string& place, Kind* kind) {
    std::string name;
    if (!text(json, "kind", place, true, &name)) return false;
    for (int k = 0; k < kKinds; k++)
      if (kind_name(static_cast<Kind>(k)) == name) {
        *kind = static_cast<Kind>(k);
        return true;
      }
    return wrong("{}.kind \"{}\" is not known", place, name);
  }

  bool cpus(const Json& json, const std::string& place, int copy, Vertex* made) {
    if (made->kind != Kind::core)
      return !json.contains("cpus") || wrong("{}: only a core has \"cpus\"", place);
    if (!json.contains("cpus") || copy > 0) {
      made->cpus = {cpus_++};
      return true;
    }
    if (!json["cpus"].is_array() || json["cpus"].empty() || json["cpus"].size() > 64)
      return wrong("{}.cpus must be a list", place);
    for (const Json& cpu : json["cpus"]) {
      if (!cpu.is_whole(0, 1e6)) return wrong("{}.cpus must be numbers of processors", place);
      made->cpus.push_back(cpu.get<int>());
    }
    cpus_ = made->cpus.back() + 1;
    return true;
  }

  bool switches(const Json& json) {
    if (!json.contains("switches")) return true;
    if (!json["switches"].is_array()) return wrong("\"switches\" must be a list of names");
    for (size_t i = 0; i < json["switches"].size(); i++) {
      const Json& name = json["switches"][i];
      if (!name.is_string() || name == "") return wrong("switches[{}] must be a name", i);
      Vertex made;
      made.kind = Kind::network_switch;
      made.name = name.get<std::string>();
      if (!names_.emplace(std::pair(-1, made.name), static_cast<int>(topology_.vertices.size()))
               .second)
        return wrong("switches[{}]: there are two \"{}\"", i, made.name);
      topology_.vertices.push_back(std::move(made));
    }
    return true;
  }

  bool links(const Json& json) {
    if (!json.contains("links")) return true;
    if (!json["links"].is_array()) return wrong("\"links\" must be a list");
    for (size_t i = 0; i < json["links"].size(); i++)
      if (!link(json["links"][i], json, fmt::format("links[{}]", i))) return false;
    return true;
  }

  // Adds the link once for each copy of the hosts that its ends name with {}.
  bool link(const Json& json, const Json& document, const std::string& place) {
    std::string a, b;
    Link made;
    if (!object(json, place, {"a", "b", "gb_per_s"}) || !text(json, "a", place, true, &a) ||
        !text(json, "b", place, true, &b) ||
        !number(json, "gb_per_s", place, kMostGbPerS, &made.gb_per_s))
      return false;
    const std::vector<int> of_a = copies_of(a, document), of_b = copies_of(b, document);
    if (of_a.empty() || of_b.empty())
      return wrong("{}: no host is named as in \"{}\"", place, of_a.empty() ? a : b);
    if (repeats(a) && repeats(b) && of_a != of_b)
      return wrong("{}: \"{}\" and \"{}\" repeat differently", place, a, b);
    for (const int i : repeats(a) ? of_a : of_b) {
      if (topology_.links.size() >= kMostLinks)
        return wrong("there are more than {} links", kMostLinks);
      if (!end(numbered(a, i), place, &made.a) || !end(numbered(b, i), place, &made.b))
        return false;
      if (made.a == made.b) return wrong("{} joins \"{}\" with itself", place, a);
      topology_.links.push_back(made);
    }
    return true;
  }

  static std::string host_part(const std::string& path) { return path.substr(0, path.find('/')); }
  static bool repeats(const std::string& path) {
    return host_part(path).find("{}") != std::string::npos;
  }

  // Returns the numbers of the hosts that one end of a link stands for; only 0 if the host does not
  // repeat.
  static std::vector<int> copies_of(const std::string& path, const Json& document) {
    if (!repeats(path)) return {0};
    std::vector<int> numbers;
    for (const Json& host : document["hosts"]) {
      if (host["name"] != host_part(path)) continue;
      const int first = host.contains("first") ? host["first"].get<int>() : 0;
      const int repeat = host.contains("repeat") ? host["repeat"].get<int>() : 1;
      for (int i = first; i < first + repeat; i++) numbers.push_back(i);
    }
    return numbers;
  }

  bool end(const std::string& path, const std::string& place, int* vertex) {
    const size_t slash = path.find('/');
    auto found = names_.find({-1, path.substr(0, slash)});
    if (found != names_.end() && slash != path.npos)
      found = names_.find({found->second, path.substr(slash + 1)});
    if (found == names_.end())
      return wrong("{}: there is no \"{}\": an end is host/device, or a switch", place, path);
    *vertex = found->second;
    const Kind kind = topology_.vertices[static_cast<size_t>(*vertex)].kind;
    return device(kind) || wrong("{}: \"{}\" is a {}: links join devices and switches", place, path,
                                 kind_name(kind));
  }

  Topology topology_;
  // (the vertex among whose children the name is unique; a device's host), name
  std::map<std::pair<int, std::string>, int> names_;
  int cpus_ = 0;  // the next processor's number in this host
};

void write_vertex(const Topology& topology, const Tree& tree, int index, JsonWriter& out) {
  const Vertex& vertex = topology.vertices[static_cast<size_t>(index)];
  out.begin_map();
  if (vertex.kind != Kind::host) out.entry("kind", kind_name(vertex.kind));
  out.entry("name", vertex.name);
  if (!vertex.model.empty()) out.entry("model", vertex.model);
  if (vertex.bytes) out.entry("bytes", vertex.bytes);
  if (!vertex.cpus.empty())
    out.entry("cpus", [&] { out.list(vertex.cpus, [&](int cpu) { out.value(cpu); }); });
  if (vertex.gb_per_s > 0) out.entry("gb_per_s", vertex.gb_per_s);
  if (vertex.down) out.entry("down", true);
  if (!tree.below(index).empty())
    out.entry("children", [&] {
      out.list(tree.below(index), [&](int child) { write_vertex(topology, tree, child, out); });
    });
  out.end_map();
}

}  // namespace

Result<Topology> parse_json(const std::string& text, const std::string& source) {
  Result<JsonValue> json = parse_json_text(text, source);
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (!json.ok() && (first == text.npos || text[first] == '{')) return json.take_status();
  if (!json.ok())
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{}, and not XML of hwloc either",
                json.status().text());
  return Reader(source).read(json.value());
}

Result<Topology> load_file(const std::string& path) {
  FSCCL_ASSIGN(const std::string text, read_text_file(path, kMostFileBytes));
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos || text[first] != '<') return parse_json(text, path);
  // The machine goes through JSON, because its reader checks which kind may hang below which.
  FSCCL_ASSIGN(const Topology machine, parse_xml(text, path));
  return parse_json(to_json(machine), path);
}

std::string to_json(const Topology& topology) {
  const Tree tree(topology);
  std::vector<int> hosts, switches;
  for (const int root : tree.roots())
    (topology.vertices[static_cast<size_t>(root)].kind == Kind::host ? hosts : switches)
        .push_back(root);
  const auto write = [&](JsonWriter& out) {
    const auto host = [&](int index) { write_vertex(topology, tree, index, out); };
    const auto name = [&](int index) {
      out.text(topology.vertices[static_cast<size_t>(index)].name);
    };
    const auto link = [&](const Link& one) {
      out.begin_map();
      out.entries({{"a", topology.path(one.a)}, {"b", topology.path(one.b)}});
      if (one.gb_per_s > 0) out.entry("gb_per_s", one.gb_per_s);
      out.end_map();
    };
    out.map({{"fsccl_topology", 1},
             {"hosts", [&] { out.list(hosts, host); }},
             {"switches", [&] { out.list(switches, name); }},
             {"links", [&] { out.list(topology.links, link); }}});
  };
  return write_json(write, JsonWriter::Form::lines) + "\n";
}

}  // namespace fsccl::topo
