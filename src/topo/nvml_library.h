// The functions of NVML that FSCCL uses, from libnvidia-ml.so.1, which is a part of NVIDIA's
// driver. Their types are declared here as in nvml.h, and the soname guarantees that they stay the
// same, so building needs no CUDA toolkit.
#pragma once

namespace fsccl::topo {

struct NvmlDevice;  // opaque

struct NvmlMemory {
  unsigned long long total, free, used;
};

struct NvmlPci {
  char old_bus_id[16];
  unsigned domain, bus, device;
  unsigned model, board;
  char bus_id[32];
};

// The functions of NVML. They return 0 or an error number.
struct NvmlLibrary {
  int (*init)();
  int (*shutdown)();
  int (*device_by_bus_id)(const char* bus_id, NvmlDevice** device);
  int (*name)(NvmlDevice* device, char* name, unsigned capacity);
  int (*memory)(NvmlDevice* device, NvmlMemory* memory);
  int (*link_active)(NvmlDevice* device, unsigned link, int* active);
  int (*link_version)(NvmlDevice* device, unsigned link, unsigned* version);
  int (*link_remote)(NvmlDevice* device, unsigned link, NvmlPci* remote);
  // null in drivers before 470
  int (*link_remote_kind)(NvmlDevice* device, unsigned link, int* kind);
};

// Returns null if NVML is missing. The library stays loaded.
const NvmlLibrary* nvml_library();

}  // namespace fsccl::topo
