#include "transports/tcp/inbox.h"

#include <algorithm>
#include <cstring>

namespace fsccl::tcp {
namespace {

constexpr size_t kAhead = 1024;            // bytes read beyond the end of a message's bytes
constexpr size_t kBufferBytes = 20 << 10;  // messages of up to 16 KiB come in one read

}  // namespace

int Inbox::room(std::array<iovec, 2>& places) {
  if (!buffer_) buffer_ = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
  int count = 0;
  if (inside_ && place_) place_ = reader_.go_on(head_, place_);
  if (inside_ && place_) places[static_cast<size_t>(count++)] = {place_ + got_, left()};
  places[static_cast<size_t>(count)] = {buffer_.get() + end_, count ? kAhead : kBufferBytes - end_};
  return count + 1;
}

bool Inbox::took(size_t bytes) {
  if (inside_ && place_) {
    const size_t direct = std::min(bytes, left());
    got_ += direct;
    bytes -= direct;
    if (left() == 0 && !finish()) return false;
  }
  end_ += bytes;
  return parse();
}

bool Inbox::finish() {
  inside_ = false;
  return reader_.end(head_, place_);
}

// Takes messages out of the buffer. The buffer is empty while bytes go straight to their place.
bool Inbox::parse() {
  size_t begin = 0;
  while (true) {
    if (!inside_) {
      if (end_ - begin < sizeof head_) break;
      std::memcpy(&head_, buffer_.get() + begin, sizeof head_);
      if (head_.seal != seal_of(head_, checksum_) || !possible(head_)) {
        reader_.spoilt(head_);
        return false;
      }
      begin += sizeof head_;
      inside_ = true;
      got_ = 0;
      place_ = reader_.begin(head_);
    }
    const size_t now = std::min(end_ - begin, left());
    if (now && place_) place_ = reader_.go_on(head_, place_);
    if (now && place_) std::memcpy(place_ + got_, buffer_.get() + begin, now);
    begin += now;
    got_ += now;
    if (left() != 0) break;
    if (!finish()) return false;
  }
  std::memmove(buffer_.get(), buffer_.get() + begin, end_ - begin);
  end_ -= begin;
  return true;
}

}  // namespace fsccl::tcp
