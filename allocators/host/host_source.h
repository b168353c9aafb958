// Host memory of the system as a source. Each block is an arena of one rank (arena.h): an anonymous
// sealed file whose memory is reserved as a whole, and which vanishes when no process has it mapped
// or open any more.
#pragma once
#include <memory>

#include "allocators/adaptors/memory_source.h"

namespace fsccl {

std::shared_ptr<MemorySource> make_host_source();

}  // namespace fsccl
