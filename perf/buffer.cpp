#include "buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace fsccl::perf {

const char* memory_name(Memory memory) {
  return memory == Memory::kCaller ? "caller" : memory == Memory::kPool ? "pool" : "shared";
}

Buffer::Buffer(const Session& session, Memory memory, uint64_t bytes)
    : pool_(session.pool()), memory_(memory), bytes_(std::max<uint64_t>(bytes, 1)) {
  if (memory == Memory::kPool) {
    must(fsccl_pool_alloc(pool_, bytes_, nullptr, &data_), "fsccl_pool_alloc");
  } else {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) {
      fmt::print(stderr, "fsccl-perf: rank {}: no memory for a buffer of {} bytes: {}\n",
                 session.rank(), bytes_, strerror(errno));
      std::_Exit(1);
    }
  }
  memset(data_, 0xEE, bytes_);
}

Buffer::~Buffer() {
  if (memory_ == Memory::kPool)
    must(fsccl_pool_free(pool_, data_, nullptr), "fsccl_pool_free");
  else
    munmap(data_, bytes_);
}

}  // namespace fsccl::perf
