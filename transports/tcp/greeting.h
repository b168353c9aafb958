// The handshake of wire/handshake.h, both sides, over a socket that never blocks:
//
//     Hello ->   <- Challenge   Proof ->   <- Linked
//
// Until it is over, the other side gets no more memory than the bytes of these frames, and nothing
// that it sends is trusted. The key belongs to the transports of one job, so a proof of another
// connection is useless here.
#pragma once
#include <array>
#include <optional>

#include "base/fd.h"
#include "base/socket.h"
#include "wire/frame.h"
#include "wire/handshake.h"

namespace fsccl::tcp {

// Reads one frame of a known type and length, and never a byte more.
class FrameReader {
 public:
  // Returns true if the frame is there. An error means that it will not come.
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
  // Returns true if the other side has proved itself. From then on it may use this connection as
  // the link between the two at any moment.
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

// The side that is called. welcome() sends Linked.
class Visitor {
 public:
  Visitor(Fd fd, const Credentials& credentials, int rank, int64_t deadline_ns);
  int fd() const { return fd_.get(); }
  int64_t deadline_ns() const { return deadline_ns_; }
  // Goes on with the handshake. Returns the rank that has proved itself, or no value if it has not
  // yet.
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
