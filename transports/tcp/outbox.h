// The bytes that have yet to go over one socket. Bytes that the socket takes at once are read from
// the sender's memory. The rest is copied to the sender's ring (mirror/node.h) and goes from there
// later.
#pragma once
#include <deque>
#include <vector>

#include "transports/mirror/node.h"
#include "transports/tcp/wire.h"

namespace fsccl::tcp {

class Outbox {
 public:
  // Sends a message behind those before it, as far as the socket takes it. `fd` is -1 while there
  // is no socket. Returns false if the socket takes nothing any more. With `more` the message may
  // wait for the next one, so that one call of the system takes both: each call costs some ten
  // microseconds beside its bytes, because the system works off the peer's answers between calls.
  bool send(int fd, const Head& head, mirror::Payload&& payload, bool more = false);
  // Sends the rest, as far as the socket takes it. Returns false if the socket takes nothing any
  // more.
  bool flush(int fd);
  bool empty() const { return messages_.empty(); }
  void clear() {
    messages_.clear();
    held_.clear();
  }

 private:
  struct Message {
    Head head{};
    size_t sent = 0;  // bytes of head and payload that are sent
    const std::byte* data = nullptr;
    std::shared_ptr<mirror::Mirrors> memory;  // in which the bytes lie, else
    std::vector<std::byte> own;
  };
  struct Held {  // for the next one; then nothing is left of what was before
    Head head;
    mirror::Payload payload;
  };
  void keep(const Head& head, size_t sent, mirror::Payload&& payload);

  std::deque<Message> messages_;
  std::vector<Held> held_;
};

}  // namespace fsccl::tcp
