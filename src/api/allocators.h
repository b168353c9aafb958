// Sources of memory behind the tables of fsccl/allocator.h.
#pragma once
#include <memory>

#include "allocators/adaptors/memory_source.h"
#include "fsccl/allocator.h"

namespace fsccl {

// What a table means: the source itself where the table is one of the library's, so that errors
// keep their texts and adaptors keep alive what they stand on.
Result<std::shared_ptr<MemorySource>> source_of(const fsccl_allocator_t* table);

}  // namespace fsccl
