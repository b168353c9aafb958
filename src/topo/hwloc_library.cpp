#include "topo/hwloc_library.h"

#include <dlfcn.h>

#include <optional>

namespace fsccl::topo {
namespace {

std::optional<HwlocLibrary> load() {
  void* library = dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);
  if (!library) return std::nullopt;
  HwlocLibrary found{};
  bool complete = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    complete &= function != nullptr;
  };
  decltype(&::hwloc_get_api_version) version = nullptr;
  find(version, "hwloc_get_api_version");
  find(found.init, "hwloc_topology_init");
  find(found.set_xml, "hwloc_topology_set_xml");
  find(found.set_components, "hwloc_topology_set_components");
  find(found.set_io_types_filter, "hwloc_topology_set_io_types_filter");
  find(found.load, "hwloc_topology_load");
  find(found.destroy, "hwloc_topology_destroy");
  find(found.get_obj_by_depth, "hwloc_get_obj_by_depth");
  find(found.bitmap_next, "hwloc_bitmap_next");
  if (!complete || version() >> 16 != HWLOC_API_VERSION >> 16) return std::nullopt;
  return found;
}

}  // namespace

const HwlocLibrary* hwloc_library() {
  static const std::optional<HwlocLibrary> library = load();
  return library ? &*library : nullptr;
}

}  // namespace fsccl::topo
