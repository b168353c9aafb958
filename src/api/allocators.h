// Sources of memory behind the tables of fsccl/allocator.h.
#pragma once
#include <memory>

#include "allocators/adaptors/memory_source.h"
#include "fsccl/allocator.h"

namespace fsccl {

// Returns the source of a table. If the table is one of the library's, this is the source itself,
// so that errors keep their texts and adaptors keep alive the source that they stand on.
Result<std::shared_ptr<MemorySource>> source_of(const fsccl_allocator_t* table);

}  // namespace fsccl
