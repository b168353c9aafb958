// The version that the ranks of a job compare.
#pragma once
#include <cstdint>

namespace fsccl {

// Returns FSCCL_VERSION. The function has its own source file, so that a test can link the library
// with another version.
uint32_t library_version();

}  // namespace fsccl
