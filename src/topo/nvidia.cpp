#include "topo/nvidia.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <string>
#include <utility>

#include "topo/nvml_library.h"

namespace fsccl::topo {
namespace {

constexpr unsigned kMostLinksOfGpu = 36;  // links of one GPU: more than any GPU has
constexpr int kRemoteSwitch = 2;          // nvmlIntNvLinkDeviceType_t

// Returns the bandwidth of one link in one direction, by nvmlNvlinkVersion_t (1.0, 2.0, 2.2, 3.0,
// 3.1, 4.0, 5.0 ...).
double gb_per_s_of(unsigned version) { return version <= 1 ? 20 : version <= 6 ? 25 : 50; }

class Links {
 public:
  Links(const NvmlLibrary& nvml, const std::vector<PciGpu>& gpus, Topology* topology)
      : nvml_(nvml),
        gpus_(gpus),
        topology_(*topology),
        host_(topology->host_of(gpus.front().vertex)) {}

  void of(const PciGpu& gpu, NvmlDevice* device) {
    for (unsigned link = 0; link < kMostLinksOfGpu; link++) {
      int active = 0;
      unsigned version = 0;
      if (nvml_.link_active(device, link, &active) != 0 || !active ||
          nvml_.link_version(device, link, &version) != 0)
        continue;
      const int remote = remote_of(device, link);
      // Both GPUs report a link between them, so it is counted at one of them.
      if (remote >= 0 && !(is_gpu(remote) && remote < gpu.vertex))
        gb_per_s_[{gpu.vertex, remote}] += gb_per_s_of(version);
    }
  }

  void add() {
    for (const auto& [ends, gb_per_s] : gb_per_s_)
      topology_.links.push_back({ends.first, ends.second, gb_per_s});
  }

 private:
  bool is_gpu(int vertex) const {
    return topology_.vertices[static_cast<size_t>(vertex)].kind == Kind::gpu;
  }

  // Returns the vertex at the far end of a link, or -1 if it is neither a switch nor a GPU that
  // this process may use. In virtual machines a switch has no address on the PCI bus.
  int remote_of(NvmlDevice* device, unsigned link) {
    NvmlPci remote{};
    if (nvml_.link_remote(device, link, &remote) == 0)
      for (const PciGpu& gpu : gpus_)
        if (gpu.domain == remote.domain && gpu.bus == remote.bus && gpu.device == remote.device)
          return gpu.vertex;
    int kind = kRemoteSwitch;  // the far end of a link if the driver cannot tell it
    if (nvml_.link_remote_kind && nvml_.link_remote_kind(device, link, &kind) != 0) return -1;
    return kind == kRemoteSwitch ? the_switch() : -1;
  }

  int the_switch() {
    if (switch_ < 0) {
      Vertex made;
      made.kind = Kind::nv_switch;
      made.parent = host_;
      made.name = "nvswitch";
      switch_ = static_cast<int>(topology_.vertices.size());
      topology_.vertices.push_back(std::move(made));
    }
    return switch_;
  }

  const NvmlLibrary& nvml_;
  const std::vector<PciGpu>& gpus_;
  Topology& topology_;
  const int host_;
  int switch_ = -1;
  std::map<std::pair<int, int>, double> gb_per_s_;  // bandwidth of all links between two vertices
};

}  // namespace

void ask_nvidia(const std::vector<PciGpu>& gpus, Topology* topology) {
  const NvmlLibrary* const nvml = gpus.empty() ? nullptr : nvml_library();
  if (!nvml || nvml->init() != 0) return;
  Links links(*nvml, gpus, topology);
  for (const PciGpu& gpu : gpus) {
    NvmlDevice* device = nullptr;
    const std::string bus_id =
        fmt::format("{:08X}:{:02X}:{:02X}.0", gpu.domain, gpu.bus, gpu.device);
    if (nvml->device_by_bus_id(bus_id.c_str(), &device) != 0) continue;
    Vertex& vertex = topology->vertices[static_cast<size_t>(gpu.vertex)];
    std::array<char, 96> name{};
    if (nvml->name(device, name.data(), name.size() - 1) == 0 && name[0])
      vertex.model = name.data();
    NvmlMemory memory{};
    if (nvml->memory(device, &memory) == 0) vertex.bytes = memory.total;
    links.of(gpu, device);
  }
  links.add();
  nvml->shutdown();
}

}  // namespace fsccl::topo
