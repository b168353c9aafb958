// The bytes that one socket has not taken yet. One sendmsg sends all messages that a sender has
// before it waits, from the sender's memory. A single message of up to 1 KiB is copied behind its
// head and sent by one send. Bytes that the socket does not take are copied to the sender's ring
// (mirror/node.h) and sent from there later. So no call waits for a peer, and no buffer of the
// caller is read after its call.
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
  // wait for the next one, so that one system call sends both. Each call takes some ten
  // microseconds in addition to its bytes, because the system processes the peer's answers between
  // calls.
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
    size_t sent = 0;  // the number of bytes of head and payload that were sent
    const std::byte* data = nullptr;
    std::shared_ptr<mirror::Mirrors> memory;  // the memory in which the bytes lie, or null
    std::vector<std::byte> own;               // a copy of them if `memory` is null
  };
  struct Held {  // a message that waits for the next one; all messages before it were sent
    Head head;
    mirror::Payload payload;
  };
  void keep(const Head& head, size_t sent, mirror::Payload&& payload);

  std::deque<Message> messages_;
  std::vector<Held> held_;
};

}  // namespace fsccl::tcp
