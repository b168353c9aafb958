// The functions of hwloc 2 that FSCCL uses, from libhwloc.so.15 if it is installed. Objects are
// read with hwloc's header alone.
#pragma once
#include <hwloc.h>

namespace fsccl::topo {

struct HwlocLibrary {
  decltype(&::hwloc_topology_init) init;
  decltype(&::hwloc_topology_set_components) set_components;
  decltype(&::hwloc_topology_set_io_types_filter) set_io_types_filter;
  decltype(&::hwloc_topology_load) load;
  decltype(&::hwloc_topology_destroy) destroy;
  decltype(&::hwloc_get_obj_by_depth) get_obj_by_depth;
};

// Returns null if hwloc is missing or has another major version. The library stays loaded.
const HwlocLibrary* hwloc_library();

}  // namespace fsccl::topo
