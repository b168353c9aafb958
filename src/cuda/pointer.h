// Says whether an address is memory of a GPU. This is checked for every buffer of every call, so it
// costs only one test on a machine without a driver. The check does not initialise the driver: a
// process that has device memory has initialised the driver, and before that no address is device
// memory.
#pragma once
#include <atomic>

namespace fsccl::cuda {

// It becomes false when a process first finds no driver.
inline std::atomic<bool> may_have_devices{true};

bool ask_whether_on_device(const void* pointer, int* ordinal);

inline bool on_device(const void* pointer, int* ordinal) {
  return may_have_devices.load(std::memory_order_relaxed) &&
         ask_whether_on_device(pointer, ordinal);
}

}  // namespace fsccl::cuda
