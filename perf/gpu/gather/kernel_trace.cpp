#include "kernel_trace.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace fsccl::perf {
namespace {

// The kinds of records, as cupti_activity.h numbers them. A record begins with its kind.
enum Kind : int { kCopy = 1, kKernel = 3, kConcurrentKernel = 10, kCopyBetweenDevices = 22 };
using Requested = void (*)(uint8_t** buffer, size_t* bytes, size_t* records);
using Completed = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t bytes,
                           size_t valid);

struct Cupti {
  int (*enable)(int kind);
  int (*callbacks)(Requested requested, Completed completed);
  int (*flush)(uint32_t flags);
  int (*next)(uint8_t* buffer, size_t valid, void** record);
} cupti;

// The beginning of CUpti_ActivityMemcpy, which is the same in every version.
struct CopyRecord {
  int kind;
  uint8_t copy_kind, source_kind, destination_kind, flags;
  uint64_t bytes, begin_ns, end_ns;
};

std::mutex mutex;
Traced recorded;

void give_buffer(uint8_t** buffer, size_t* bytes, size_t* records) {
  *bytes = size_t{1} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *bytes));
  *records = 0;
}

void take_buffer(void*, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(mutex);
  for (void* record = nullptr; cupti.next(buffer, valid, &record) == 0;) {
    CopyRecord copy;
    std::memcpy(&copy.kind, record, sizeof copy.kind);
    if (copy.kind == kKernel || copy.kind == kConcurrentKernel) recorded.kernels++;
    if (copy.kind != kCopy && copy.kind != kCopyBetweenDevices) continue;
    std::memcpy(&copy, record, sizeof copy);
    recorded.copies.push_back({copy.bytes, copy.begin_ns, copy.end_ns});
  }
  std::free(buffer);
}

template <typename Function>
bool find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

bool trace_kernels(std::string* why) {
  void* library = nullptr;
  for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"})
    if ((library = dlopen(name, RTLD_NOW))) break;
  if (!library) return *why = "CUPTI is not installed", false;
  if (!find(library, cupti.enable, "cuptiActivityEnable") ||
      !find(library, cupti.callbacks, "cuptiActivityRegisterCallbacks") ||
      !find(library, cupti.flush, "cuptiActivityFlushAll") ||
      !find(library, cupti.next, "cuptiActivityGetNextRecord"))
    return *why = "this CUPTI has not the activities", false;
  if (cupti.callbacks(give_buffer, take_buffer) != 0 || cupti.enable(kConcurrentKernel) != 0 ||
      cupti.enable(kCopy) != 0)
    return *why = "CUPTI refuses to record", false;
  (void)cupti.enable(kCopyBetweenDevices);
  return true;
}

Traced traced() {
  cupti.flush(1);
  const std::lock_guard lock(mutex);
  std::sort(recorded.copies.begin(), recorded.copies.end(),
            [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  return recorded;
}

}  // namespace fsccl::perf
