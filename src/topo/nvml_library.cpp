#include "topo/nvml_library.h"

#include <optional>

#include "base/loaded_library.h"

namespace fsccl::topo {
namespace {

std::optional<NvmlLibrary> load_nvml() {
  LoadedLibrary library("libnvidia-ml.so.1");
  NvmlLibrary found{};
  library.find(found.init, "nvmlInit_v2");
  library.find(found.shutdown, "nvmlShutdown");
  library.find(found.device_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
  library.find(found.name, "nvmlDeviceGetName");
  library.find(found.memory, "nvmlDeviceGetMemoryInfo");
  library.find(found.link_active, "nvmlDeviceGetNvLinkState");
  library.find(found.link_version, "nvmlDeviceGetNvLinkVersion");
  library.find(found.link_remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
  if (library.missing()) return std::nullopt;
  library.find(found.link_remote_kind, "nvmlDeviceGetNvLinkRemoteDeviceType");
  return found;
}

}  // namespace

const NvmlLibrary* nvml_library() {
  static const std::optional<NvmlLibrary> library = load_nvml();
  return library ? &*library : nullptr;
}

}  // namespace fsccl::topo
