// If a communicator has failed or its deadline has passed, the end of an object waits so long for
// streams that still use the object's memory. After that the memory stays reserved.
#pragma once
#include <cstdint>

namespace fsccl {

inline constexpr int64_t kDrainMs = 10'000;

}  // namespace fsccl
