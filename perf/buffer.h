// The memory that a measured collective works on: the caller's own, a block of the library's pool,
// or (shared_output.h) a slot that the ranks of a host share.
#pragma once
#include <cstdint>

#include "session.h"

namespace fsccl::perf {

enum class Memory { kCaller, kPool, kShared };
const char* memory_name(Memory memory);

// A buffer in memory of kCaller or kPool, all of whose pages have been touched. Its constructor
// ends the process if there is no memory.
class Buffer {
 public:
  Buffer(const Session& session, Memory memory, uint64_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* at(uint64_t offset) const { return static_cast<char*>(data_) + offset; }

 private:
  fsccl_pool_t pool_;
  Memory memory_;
  uint64_t bytes_;
  void* data_ = nullptr;
};

}  // namespace fsccl::perf
