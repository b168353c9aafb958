// Host memory of the system as a source: each block is an arena of one rank (arena.h), so an
// anonymous file that exists as a whole, is sealed, and vanishes with whoever maps it last.
#pragma once
#include <memory>

#include "allocators/adaptors/memory_source.h"

namespace fsccl {

std::shared_ptr<MemorySource> make_host_source();

}  // namespace fsccl
