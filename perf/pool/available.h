// What the library itself knows of free memory, for all subcommands: this folder is the one that
// looks inside.
#pragma once
#include <cstdint>

namespace fsccl::perf {

// That this host, or what limits this process in it, can still give. UINT64_MAX: nothing says.
uint64_t available_bytes();

}  // namespace fsccl::perf
