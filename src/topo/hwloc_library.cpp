#include "topo/hwloc_library.h"

#include <optional>

#include "base/loaded_library.h"

namespace fsccl::topo {
namespace {

std::optional<HwlocLibrary> load_hwloc() {
  LoadedLibrary library("libhwloc.so.15");
  HwlocLibrary found{};
  decltype(&::hwloc_get_api_version) version = nullptr;
  library.find(version, "hwloc_get_api_version");
  library.find(found.init, "hwloc_topology_init");
  library.find(found.set_components, "hwloc_topology_set_components");
  library.find(found.set_io_types_filter, "hwloc_topology_set_io_types_filter");
  library.find(found.load, "hwloc_topology_load");
  library.find(found.destroy, "hwloc_topology_destroy");
  library.find(found.get_obj_by_depth, "hwloc_get_obj_by_depth");
  if (library.missing() || version() >> 16 != HWLOC_API_VERSION >> 16) return std::nullopt;
  return found;
}

}  // namespace

const HwlocLibrary* hwloc_library() {
  static const std::optional<HwlocLibrary> library = load_hwloc();
  return library ? &*library : nullptr;
}

}  // namespace fsccl::topo
