// A source of somebody else's, given as a table of functions (fsccl/allocator.h). The table is
// copied, and neither it nor what its functions answer is trusted: each answer is checked before
// anybody uses it.
#pragma once
#include <memory>

#include "allocators/adaptors/memory_source.h"
#include "fsccl/allocator.h"

namespace fsccl {

// The table of this library's version of a table of any version, checked. Missing functions that
// may be missing are null.
Result<fsccl_allocator_t> read_table(const fsccl_allocator_t* given);

// from read_table()
std::shared_ptr<MemorySource> make_outside_source(const fsccl_allocator_t& table);

}  // namespace fsccl
