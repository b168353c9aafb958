#include "allocators/placement/block_streams.h"

#include <algorithm>

namespace fsccl {

Result<uint32_t> BlockStreams::number(const void* stream) {
  for (uint32_t s = 0; s < count_; ++s)
    if (names_[s] == stream) return s;
  if (count_ == kMostStreams)
    return fail(FSCCL_ERR_LIMIT,
                "{} would be the stream number {} of the pool, which knows at most {}, NULL among "
                "them: use fewer",
                stream, count_ + 1, kMostStreams);
  names_[count_] = stream;
  return count_++;
}

void BlockStreams::record(const void* event, uint32_t stream) {
  order_.record(reinterpret_cast<uint64_t>(event), stream);
  if (order_.events() < forget_at_) return;
  order_.forget_known();
  forget_at_ = std::max<size_t>(64, 2 * order_.events());
}

void BlockStreams::wait(const void* event, uint32_t stream) {
  order_.wait(reinterpret_cast<uint64_t>(event), stream);
  if (stream != kProgram) return;
  for (uint32_t s = 1; s < kMostStreams; ++s) (void)order_.wait_for(known(kProgram), s);
}

std::string stream_text(const void* stream) {
  return stream ? fmt::format("stream {}", stream) : "the program's own stream";
}

}  // namespace fsccl
