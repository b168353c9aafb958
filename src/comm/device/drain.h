// How long the end of something waits for streams that still use its memory, when its communicator
// has failed or its deadline has passed: after that the memory stays reserved.
#pragma once
#include <cstdint>

namespace fsccl {

inline constexpr int64_t kDrainMs = 10'000;

}  // namespace fsccl
