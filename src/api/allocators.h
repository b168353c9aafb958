// Sources of memory behind the tables of fsccl/allocator.h.
#pragma once
#include <memory>

#include "allocators/adaptors/memory_source.h"
#include "fsccl/allocator.h"

namespace fsccl {

// Returns the source of a table. For a table of the library this is the source itself, so errors
// keep their texts, and adaptors keep the source below them alive.
Result<std::shared_ptr<MemorySource>> source_of(const fsccl_allocator_t* table);

}  // namespace fsccl
