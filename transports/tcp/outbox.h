// What has yet to go over one socket. What the socket takes at once is read from where the sender
// has it; of the rest the bytes are copied to the sender's ring (mirror/node.h), from where they go
// later.
#pragma once
#include <deque>
#include <vector>

#include "transports/mirror/node.h"
#include "transports/tcp/wire.h"

namespace fsccl::tcp {

class Outbox {
 public:
  // With what is before it, as far as the socket takes that; -1: there is none yet. False: nothing
  // goes over it any more. `more`: it may wait for the next one, so that one call takes both: each
  // call costs some ten microseconds beside its bytes, for what the peer's system answers is worked
  // off between calls.
  bool send(int fd, const Head& head, mirror::Payload payload, bool more = false);
  // What is left, as far as the socket takes it. Likewise.
  bool flush(int fd);
  bool empty() const { return messages_.empty(); }
  void clear() {
    messages_.clear();
    held_.clear();
  }

 private:
  struct Message {
    Head head{};
    size_t sent = 0;  // of head and bytes
    const std::byte* data = nullptr;
    std::shared_ptr<mirror::Mirrors> memory;  // in which the bytes lie, else
    std::vector<std::byte> own;
  };
  struct Held {  // for the next one; then nothing is left of what was before
    Head head;
    mirror::Payload payload;
  };
  void keep(const Head& head, size_t sent, mirror::Payload payload);

  std::deque<Message> messages_;
  std::vector<Held> held_;
};

}  // namespace fsccl::tcp
