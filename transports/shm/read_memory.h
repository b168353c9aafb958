// Reads the memory of another process of this host by process_vm_readv().
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace fsccl::shm {

// Copies `bytes` bytes at `address` of process `pid` to `destination`. Returns false, and sets
// errno, if the system does not permit it or the memory does not exist. A part of the bytes may
// have been copied then.
bool read_memory(int32_t pid, uint64_t address, void* destination, size_t bytes);

}  // namespace fsccl::shm
