// A source that the program provides as a table of functions (fsccl/allocator.h). The table is
// copied. Neither the table nor the results of its functions are trusted: each result is checked
// before it is used.
#pragma once
#include <memory>

#include "allocators/adaptors/memory_source.h"
#include "fsccl/allocator.h"

namespace fsccl {

// Checks a table of any version and returns it as a table of this version. Optional functions that
// it lacks are null.
Result<fsccl_allocator_t> read_table(const fsccl_allocator_t* given);

// Makes a source from a table that read_table() returned.
std::shared_ptr<MemorySource> make_outside_source(const fsccl_allocator_t& table);

}  // namespace fsccl
