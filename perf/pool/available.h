// The library's own knowledge of free memory, for all subcommands: only this folder looks inside
// the library.
#pragma once
#include <cstdint>

namespace fsccl::perf {

// That this host, or what limits this process in it, can still give. UINT64_MAX: nothing says.
uint64_t available_bytes();

}  // namespace fsccl::perf
