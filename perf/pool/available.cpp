#include "perf/pool/available.h"

#include "allocators/host/available_memory.h"

namespace fsccl::perf {

uint64_t available_bytes() { return available_memory().bytes; }

}  // namespace fsccl::perf
