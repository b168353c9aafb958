// Says whether an address is memory of a GPU. Every buffer of every call is asked about, so the
// answer costs one test where there is no driver. The driver is not initialised for this: a process
// that has device memory has initialised it, and before that no address is device memory.
#pragma once
#include <atomic>

namespace fsccl::cuda {

// False from the first time that no driver was found.
inline std::atomic<bool> may_have_devices{true};

bool ask_whether_on_device(const void* pointer, int* ordinal);

inline bool on_device(const void* pointer, int* ordinal) {
  return may_have_devices.load(std::memory_order_relaxed) &&
         ask_whether_on_device(pointer, ordinal);
}

}  // namespace fsccl::cuda
