// Imports memory of the caller into an arena, and gives it back. Addresses and contents stay the
// same: the arena's pages are mapped over the caller's pages, and private pages over these at the
// end. Each change of a mapping is one system call, so a failure leaves the memory as it was. No
// thread may touch the memory meanwhile.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace fsccl {

// Checks that [pointer, pointer + bytes) consists of whole pages of private anonymous writable
// memory outside of stacks. The error says what the memory is and how to allocate it.
Status check_importable(const void* pointer, uint64_t bytes);

// Makes the pages those of [file_offset, file_offset + bytes) of the arena's file, which are mapped
// at `block` as well. A child of fork() does not have them.
Status move_into_arena(void* pointer, uint64_t bytes, void* block, int fd, uint64_t file_offset);
// Makes the pages private anonymous ones again.
Status move_out_of_arena(void* pointer, uint64_t bytes);

}  // namespace fsccl
