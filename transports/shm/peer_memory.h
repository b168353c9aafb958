// Reads and writes the memory of another process of this host by process_vm_readv() and
// process_vm_writev(). Both need the same permission.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace fsccl::shm {

// Copies `bytes` bytes at `address` of process `pid` to `destination`. Returns false, and sets
// errno, if the system does not permit it or the memory does not exist. A part of the bytes may
// have been copied then.
bool read_memory(int32_t pid, uint64_t address, void* destination, size_t bytes);
// Copies `bytes` bytes at `source` to `address` of process `pid`. Fails as read_memory() does. It
// also fails if `stop`, which it looks at before each system call, is not 0.
bool write_memory(int32_t pid, uint64_t address, const void* source, size_t bytes,
                  const uint32_t& stop);

// Returns true if no thread of the process runs any more. A process that this one cannot look at
// counts as running. Takes no memory.
bool has_ended(int32_t pid);

}  // namespace fsccl::shm
