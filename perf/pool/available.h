// Asks the library how much memory is free, for all subcommands. This is here because, of the parts
// of fsccl-perf, only pool/ and race/ look inside the library.
#pragma once
#include <cstdint>

namespace fsccl::perf {

// Returns the bytes that this host, or a limit of this process, still allows; UINT64_MAX if they
// are not known.
uint64_t available_bytes();

}  // namespace fsccl::perf
