// The version that the ranks of a job compare.
#pragma once
#include <cstdint>

namespace fsccl {

// FSCCL_VERSION. In a file of its own: a test links a library of another version by its own one.
uint32_t library_version();

}  // namespace fsccl
