#include "topo/discover.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "base/limits.h"
#include "base/small_file.h"
#include "topo/hwloc_library.h"
#include "topo/hwloc_xml.h"
#include "topo/nvidia.h"

namespace fsccl::topo {
namespace {

constexpr unsigned kDisplay = 0x03;  // PCI class
constexpr unsigned kNvidia = 0x10de;
constexpr std::array<unsigned, 3> kGpuMakers{kNvidia, 0x1002, 0x8086};  // and AMD, Intel
constexpr double kGbPerMbit = 1e6 / 8 / 1e9;

const char* info(hwloc_obj_t object, const char* name) {
  const char* value = hwloc_obj_get_info_by_name(object, name);
  return value ? value : "";
}

// Returns the number at the start of a file of the system, or 0 if there is none.
double number_in(const std::string& path) {
  const std::string text = read_start(path);
  double number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Copies hwloc's tree level by level, and leaves out levels that say nothing about distance.
class Walk {
 public:
  // `live` says that the tree is of this machine, so /sys and drivers may be asked.
  explicit Walk(bool live) : live_(live) {}

  Topology run(hwloc_obj_t machine) {
    const int host =
        add(Kind::host, -1, *info(machine, "HostName") ? info(machine, "HostName") : "host");
    below(machine, host);
    if (live_) ask_nvidia(nvidia_, &topology_);
    return std::move(topology_);
  }

 private:
  int add(Kind kind, int parent, std::string name) {
    Vertex vertex;
    vertex.kind = kind;
    vertex.parent = parent;
    for (char& c : name)
      if (c == '/' || static_cast<unsigned char>(c) < ' ') c = '_';
    vertex.name = name;
    while (!names_.insert(vertex.name).second)
      vertex.name = fmt::format("{}-{}", name, ++copies_.try_emplace(name, 1).first->second);
    topology_.vertices.push_back(std::move(vertex));
    return static_cast<int>(topology_.vertices.size()) - 1;
  }
  std::string number(Kind kind, const char* name) { return name + std::to_string(counts_[kind]++); }
  Vertex& at(int vertex) { return topology_.vertices[static_cast<size_t>(vertex)]; }

  void below(hwloc_obj_t object, int vertex) {
    vertex = memory(object, vertex);
    for (hwloc_obj_t child = object->first_child; child; child = child->next_sibling)
      visit(child, vertex);
    for (hwloc_obj_t child = object->io_first_child; child; child = child->next_sibling)
      input_output(child, above(vertex, Kind::numa));
  }

  // Returns `vertex` or its nearest ancestor below which a vertex of kind `most` may hang: memory
  // does not hang below memory, nor a device below a cache.
  int above(int vertex, Kind most) {
    while (at(vertex).kind > most) vertex = at(vertex).parent;
    return vertex;
  }

  // Adds the memory nodes of an object. Its children hang below the first of them.
  int memory(hwloc_obj_t object, int vertex) {
    if (!object->memory_first_child) return vertex;
    vertex = above(vertex, Kind::package);
    int first = vertex;
    for (hwloc_obj_t child = object->memory_first_child; child; child = child->next_sibling) {
      while (child->type != HWLOC_OBJ_NUMANODE && child->memory_first_child)
        child = child->memory_first_child;  // memory-side cache
      if (child->type != HWLOC_OBJ_NUMANODE) continue;
      const int made = add(Kind::numa, vertex, "numa" + std::to_string(child->os_index));
      at(made).bytes = child->attr->numanode.local_memory;
      if (first == vertex) first = made;
    }
    return first;
  }

  void visit(hwloc_obj_t object, int parent) {
    int vertex = parent;
    if (object->type == HWLOC_OBJ_PACKAGE) {
      vertex = add(Kind::package, parent, number(Kind::package, "package"));
      at(vertex).model = info(object, "CPUModel");
    } else if (object->type == HWLOC_OBJ_L3CACHE ||
               (object->type == HWLOC_OBJ_L2CACHE && object->arity > 1)) {
      vertex = add(Kind::cache, memory(object, parent),
                   number(Kind::cache, object->type == HWLOC_OBJ_L3CACHE ? "L3-" : "L2-"));
      at(vertex).bytes = object->attr->cache.size;
      for (hwloc_obj_t child = object->first_child; child; child = child->next_sibling)
        visit(child, vertex);
      for (hwloc_obj_t child = object->io_first_child; child; child = child->next_sibling)
        input_output(child, above(vertex, Kind::numa));
      return;
    } else if (object->type == HWLOC_OBJ_CORE) {
      processors(object, &at(add(Kind::core, parent, number(Kind::core, "core"))).cpus);
      return;
    }
    below(object, vertex);
  }

  static void processors(hwloc_obj_t object, std::vector<int>* cpus) {
    if (object->type == HWLOC_OBJ_PU) cpus->push_back(static_cast<int>(object->os_index));
    for (hwloc_obj_t child = object->first_child; child; child = child->next_sibling)
      processors(child, cpus);
  }

  // Keeps a bridge if several GPUs and NICs hang below it, or if one does and the bridge is
  // attached to the host itself.
  void input_output(hwloc_obj_t object, int parent) {
    if (object->type == HWLOC_OBJ_BRIDGE) {
      const int devices = count_devices(object);
      int vertex = parent;
      if (devices > 1 ||
          (devices == 1 && object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST))
        vertex = add(Kind::pci, parent, number(Kind::pci, "pci"));
      if (devices > 0)
        for (hwloc_obj_t child = object->io_first_child; child; child = child->next_sibling)
          input_output(child, vertex);
    } else if (object->type == HWLOC_OBJ_PCI_DEVICE) {
      const Kind kind = kind_of(object);
      if (kind == Kind::gpu) gpu(object, parent);
      if (kind == Kind::nic) nic(object, parent);
    }
  }

  static int count_devices(hwloc_obj_t object) {
    if (object->type == HWLOC_OBJ_PCI_DEVICE) return kind_of(object) != Kind::pci;
    int sum = 0;
    for (hwloc_obj_t child = object->io_first_child; child; child = child->next_sibling)
      sum += count_devices(child);
    return sum;
  }

  // Returns Kind::pci for a device that is neither a GPU nor a NIC.
  static Kind kind_of(hwloc_obj_t device) {
    const auto& pci = device->attr->pcidev;
    if (pci.class_id >> 8 == kDisplay &&
        std::find(kGpuMakers.begin(), kGpuMakers.end(), pci.vendor_id) != kGpuMakers.end())
      return Kind::gpu;
    return system_name(device, HWLOC_OBJ_OSDEV_NETWORK) ||
                   system_name(device, HWLOC_OBJ_OSDEV_OPENFABRICS)
               ? Kind::nic
               : Kind::pci;
  }

  static const char* system_name(hwloc_obj_t device, hwloc_obj_osdev_type_t type) {
    for (hwloc_obj_t child = device->io_first_child; child; child = child->next_sibling)
      if (child->type == HWLOC_OBJ_OS_DEVICE && child->attr->osdev.type == type) return child->name;
    return nullptr;
  }

  void gpu(hwloc_obj_t device, int parent) {
    const int vertex = add(Kind::gpu, parent, number(Kind::gpu, "gpu"));
    at(vertex).model = info(device, "PCIDevice");
    const auto& pci = device->attr->pcidev;
    at(vertex).gb_per_s = static_cast<double>(pci.linkspeed);
    if (pci.vendor_id == kNvidia) nvidia_.push_back({vertex, pci.domain, pci.bus, pci.dev});
  }

  void nic(hwloc_obj_t device, int parent) {
    const char *net = system_name(device, HWLOC_OBJ_OSDEV_NETWORK),
               *verbs = system_name(device, HWLOC_OBJ_OSDEV_OPENFABRICS);
    const int vertex = add(Kind::nic, parent, verbs ? verbs : net);
    at(vertex).model = info(device, "PCIDevice");
    at(vertex).gb_per_s = static_cast<double>(device->attr->pcidev.linkspeed);
    if (!live_) return;
    const double rate =
        // "400 Gb/sec (4X NDR)"
        verbs ? number_in(std::string("/sys/class/infiniband/") + verbs + "/ports/1/rate") : 0;
    const double mbit = net ? number_in(std::string("/sys/class/net/") + net + "/speed") : 0;
    const double port = (rate > 0 ? rate * 1e3 : mbit) * kGbPerMbit;
    if (port > 0)
      at(vertex).gb_per_s = at(vertex).gb_per_s > 0 ? std::min(at(vertex).gb_per_s, port) : port;
    if (net)
      at(vertex).down =
          read_start(std::string("/sys/class/net/") + net + "/operstate").starts_with("down");
  }

  const bool live_;
  Topology topology_;
  std::map<Kind, int> counts_;
  std::set<std::string> names_;
  std::map<std::string, int> copies_;  // how many of a name there are
  std::vector<PciGpu> nvidia_;
};

// Returns nothing if hwloc fails.
std::optional<Topology> with_hwloc(const HwlocLibrary& hwloc) {
  hwloc_topology_t topology = nullptr;
  if (hwloc.init(&topology) != 0) return std::nullopt;
  std::optional<Topology> found;
  // These plugins are slow, and PCI already tells what is used here.
  for (const char* plugin : {"cuda", "gl", "levelzero", "nvml", "opencl", "rsmi"})
    hwloc.set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, plugin);
  hwloc.set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc.load(topology) == 0) found = Walk(true).run(hwloc.get_obj_by_depth(topology, 0, 0));
  hwloc.destroy(topology);
  return found;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] ? name.data() : "host";
}

// Returns the topology that is known without hwloc.
Topology processors() {
  Topology topology;
  topology.vertices.push_back({Kind::host, -1, host_name(), {}, 0, {}, 0, false});
  topology.vertices.push_back({Kind::package, 0, "package0", {}, 0, {}, 0, false});
  std::vector<int> known = affinity();
  if (known.empty()) known.push_back(0);
  for (const int cpu : known)
    topology.vertices.push_back(
        {Kind::core, 1, fmt::format("core{}", cpu), {}, 0, {cpu}, 0, false});
  return topology;
}

}  // namespace

Topology discover() {
  const StandardNumbersTaken taken;  // hwloc and NVML open and close descriptors of their own
  const HwlocLibrary* hwloc = hwloc_library();
  std::optional<Topology> found = hwloc ? with_hwloc(*hwloc) : std::nullopt;
  return found ? std::move(*found) : processors();
}

Result<Topology> parse_xml(const std::string& text, const std::string& source) {
  FSCCL_ASSIGN(HwlocXml xml, HwlocXml::parse(text, source));
  return Walk(false).run(xml.machine());
}

}  // namespace fsccl::topo
