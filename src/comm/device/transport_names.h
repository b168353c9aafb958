// The names of FSCCL_DEVICE_TRANSPORT's values, which ranks exchange as numbers.
#pragma once
#include <cstddef>
#include <iterator>

#include "base/config.h"

namespace fsccl {

// Returns the name of a choice, or null if there is no such choice.
inline const char* device_transport_name(size_t choice) {
  constexpr const char* kNames[] = {"auto", "p2p", "nccl", "ucx", "staged"};
  static_assert(std::size(kNames) == static_cast<size_t>(DeviceTransport::kStaged) + 1);
  return choice < std::size(kNames) ? kNames[choice] : nullptr;
}

}  // namespace fsccl
