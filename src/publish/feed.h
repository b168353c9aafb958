// A subscriber as a publishing rank sees it: a connection, what it has asked for, and what it is
// being sent. The publisher calls all functions under its lock, and none of them waits.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.h"
#include "bootstrap/framed_socket.h"
#include "publish/history.h"
#include "publish/messages.h"

namespace fsccl::publish {

class Feed {
 public:
  Feed(std::shared_ptr<FramedSocket> channel, int64_t now_ns)
      : channel_(std::move(channel)), moved_ns_(now_ns) {}

  // Takes what has arrived. After an error the connection is of no use any more.
  Status read(History& history);
  // Sends news and the answer to the subscriber's request, until nothing is left to send, the
  // socket takes no more, or this call has sent 1 MiB of answers. Returns whether something is left
  // that can be sent when the socket is writable.
  Result<bool> write(History& history, int64_t now_ns);
  void greet(ByteView catalog) { channel_->queue(FrameType::kCatalog, catalog); }
  void tell_alive() { news_due_ = true; }
  void say_goodbye();

  int fd() const { return channel_->fd(); }
  uint64_t have() const { return have_; }  // the subscriber's newest complete version
  // Returns for how long the subscriber has taken less than 256 KiB of the bytes that wait for it.
  int64_t stuck_for_ns(int64_t now_ns) const;
  uint64_t sent_bytes() const { return sent_bytes_; }
  uint64_t whole_copies() const { return whole_copies_; }
  uint64_t room_bytes() const { return room_.capacity(); }
  void stop(History& history) { history.stop(sending_); }

 private:
  void start(History& history);

  std::shared_ptr<FramedSocket> channel_;
  std::optional<Want> want_;
  Sending sending_;
  ByteView unsent_;               // the rest of a block
  Bytes room_;                    // room for a block of a whole copy
  uint64_t have_ = 0, told_ = 0;  // told_: the version in the last News
  bool news_due_ = true;
  bool stuck_ = false;  // the socket takes nothing more
  int64_t moved_ns_;    // since then the socket has taken only `taken_` bytes
  size_t taken_ = 0;
  uint64_t sent_bytes_ = 0, whole_copies_ = 0;
};

}  // namespace fsccl::publish
