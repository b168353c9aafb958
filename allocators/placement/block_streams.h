// The streams that a pool's blocks are used on, named by any address, and what orders them
// (stream_order.h). The program itself is one of them, NULL: its work is done when it is told of,
// and all that any stream is given later follows what the program has waited for. So what the
// program knows, every stream knows.
#pragma once
#include <array>

#include "allocators/placement/stream_order.h"
#include "base/status.h"

namespace fsccl {

class BlockStreams {
 public:
  static constexpr uint32_t kProgram = 0;

  // The number of the stream, which is new perhaps; an error when there are kMostStreams already.
  Result<uint32_t> number(const void* stream);
  const void* name(uint32_t stream) const { return names_[stream]; }

  const StreamClock& known(uint32_t stream) const { return order_.known(stream); }
  // Returns true if the program, and so every stream, has waited for this.
  bool over(const StreamClock& done) const { return covers(known(kProgram), done); }
  // Puts work on the stream and notes it in `done`.
  void work(uint32_t stream, StreamClock* done) {
    if (stream != kProgram) (*done)[stream] = order_.work(stream);
  }
  void record(const void* event, uint32_t stream);
  void wait(const void* event, uint32_t stream);

 private:
  StreamOrder order_;
  std::array<const void*, kMostStreams> names_{};
  uint32_t count_ = 1;
  size_t forget_at_ = 64;  // so many events are looked through for some that order nothing any more
};

// "stream 0x10", or "the program's own stream".
std::string stream_text(const void* stream);

}  // namespace fsccl
