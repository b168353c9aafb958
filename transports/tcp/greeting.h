// The handshake of wire/handshake.h over a socket that never blocks, both sides of it:
//
//     Hello ->   <- Challenge   Proof ->   <- Linked
//
// Until it is over, who is at the other end gets no more than these frames' bytes of memory, and
// not one of its bytes is believed. Its key is of the transports of one job, so that a proof of any
// other connection is of no use here.
#pragma once
#include <array>
#include <optional>

#include "base/fd.h"
#include "base/socket.h"
#include "wire/frame.h"
#include "wire/handshake.h"

namespace fsccl::tcp {

// One frame of a known type and length, and never a byte more.
class FrameReader {
 public:
  // Returns true if the frame is there; an error means that it will not come.
  Result<bool> read(int fd, FrameType type, size_t payload_bytes);
  ByteView payload() const {
    return ByteView(bytes_).subspan(kFrameHeaderBytes, have_ - kFrameHeaderBytes);
  }
  void next() { have_ = 0; }

 private:
  std::array<uint8_t, kFrameHeaderBytes + kChallengeBytes> bytes_{};
  size_t have_ = 0;
};

// The side that connects.
class Caller {
 public:
  Caller(Fd fd, const SocketAddress& address, const Credentials& credentials, int from, int to,
         int ranks);
  int fd() const { return fd_.get(); }
  bool connected() const { return step_ != Step::connecting; }
  // The other side has proved itself, and may take this connection for the link between the two at
  // any moment from now on.
  bool answered() const { return step_ == Step::linked; }
  // Returns true if the greeting is over.
  Result<bool> go_on();
  Fd take() { return std::move(fd_); }

 private:
  enum class Step { connecting, challenge, linked };
  Fd fd_;
  const SocketAddress address_;
  HandshakeClient handshake_;
  const int to_;
  Step step_ = Step::connecting;
  FrameReader reader_;
};

// The side that is called. It says Linked when it is asked to.
class Visitor {
 public:
  Visitor(Fd fd, const Credentials& credentials, int rank, int64_t deadline_ns);
  int fd() const { return fd_.get(); }
  int64_t deadline_ns() const { return deadline_ns_; }
  // The rank that has proved itself; nothing: not yet.
  Result<std::optional<int>> go_on(int ranks);
  Status welcome();
  Fd take() { return std::move(fd_); }

 private:
  Fd fd_;
  const int64_t deadline_ns_;
  const int rank_;
  HandshakeServer handshake_;
  bool challenged_ = false;
  FrameReader reader_;
};

}  // namespace fsccl::tcp
