#include "gpu_memory.h"

#include <fmt/format.h>
#include <fsccl/insight.h>

#include <cstdlib>
#include <vector>

#include "base/loaded_library.h"

namespace fsccl::perf {
namespace {

using Address = unsigned long long;

struct Driver {
  int (*get)(int* device, int ordinal);
  int (*retain)(void** context, int device);
  int (*use)(void* context);
  int (*allocate)(Address* memory, size_t bytes);
  int (*free)(Address memory);
  int (*wait)(void* stream);
  const char* missing = nullptr;

  Driver() {
    LoadedLibrary library("libcuda.so.1");
    library.find(get, "cuDeviceGet");
    library.find(retain, "cuDevicePrimaryCtxRetain");
    library.find(use, "cuCtxPushCurrent_v2");
    library.find(allocate, "cuMemAlloc_v2");
    library.find(free, "cuMemFree_v2");
    library.find(wait, "cuStreamSynchronize");
    missing = library.missing();
  }
};

const Driver& driver() {
  static const Driver made;
  return made;
}

[[noreturn]] void give_up(const char* what, int code) {
  fmt::print(stderr, "fsccl-perf: {} of CUDA's driver ended with {}\n", what, code);
  std::_Exit(1);
}
void must_be_0(int code, const char* what) {
  if (code) give_up(what, code);
}

std::vector<int> usable_gpus(std::string* why) {
  struct Found {
    std::vector<int> devices;
    std::string why;
  } found;
  const fsccl_status_t status = fsccl_device_list(
      [](void* to, const fsccl_device_info_t* info) {
        auto& all = *static_cast<Found*>(to);
        if (info->available)
          all.devices.push_back(info->device);
        else
          all.why = info->why;
      },
      &found);
  if (status != FSCCL_OK) {
    fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
    fsccl_last_error(&error);
    found.why = error.text;
  }
  *why = found.devices.empty() ? found.why : "";
  return found.devices;
}

}  // namespace

std::string why_no_gpu() {
  std::string why;
  usable_gpus(&why);
  if (why.empty() && driver().missing) why = fmt::format("the driver has no {}", driver().missing);
  return why;
}

int GpuMemory::device(const Session& session) {
  static int ordinal = -1;
  if (ordinal >= 0) return ordinal;
  std::string why;
  const std::vector<int> devices = usable_gpus(&why);
  int local_rank = 0, local_size = 1, device = 0;
  must(fsccl_comm_local_rank(session.comm(), &local_rank, &local_size), "fsccl_comm_local_rank");
  if (devices.empty() || driver().missing) give_up("loading", 1);
  void* context = nullptr;
  ordinal = devices[static_cast<size_t>(local_rank) % devices.size()];
  must_be_0(driver().get(&device, ordinal), "cuDeviceGet");
  must_be_0(driver().retain(&context, device), "cuDevicePrimaryCtxRetain");
  must_be_0(driver().use(context), "cuCtxPushCurrent");
  return ordinal;
}

GpuMemory::GpuMemory(const Session& session, uint64_t bytes) {
  device(session);
  Address memory = 0;
  must_be_0(driver().allocate(&memory, std::max<uint64_t>(bytes, 1)), "cuMemAlloc");
  data_ = reinterpret_cast<char*>(memory);
}

GpuMemory::~GpuMemory() { must_be_0(driver().free(reinterpret_cast<Address>(data_)), "cuMemFree"); }

void GpuMemory::wait() { must_be_0(driver().wait(nullptr), "cuStreamSynchronize"); }

}  // namespace fsccl::perf
