// Frames over one socket. The functions for the service thread never block; those for other threads
// block until a deadline. The input that is kept is bounded by the longest payload that the owner
// allows at the moment, and the output by what the owner queues.
#pragma once
#include <cstdint>

#include "base/fd.h"
#include "base/status.h"
#include "base/wait.h"
#include "wire/frame.h"

namespace fsccl {

// The longest payload of messages of fixed form, and of every message that a stranger may send.
inline constexpr size_t kMaxRequestBytes = 4096;
// The longest payload that an authenticated member of the job may send.
inline constexpr size_t kMaxTableBytes = size_t{1} << 28;

class FramedSocket {
 public:
  FramedSocket() = default;
  FramedSocket(Fd fd, size_t max_payload_bytes)
      : fd_(std::move(fd)), max_payload_bytes_(max_payload_bytes) {}
  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void allow(size_t max_payload_bytes) { max_payload_bytes_ = max_payload_bytes; }

  // Reads what has arrived, up to a bound. Fails with FSCCL_ERR_LINK if the other side has closed;
  // next() still returns the frames that came before.
  Status pump_in();
  // Returns true if a whole frame was there. Returns FSCCL_ERR_PROTOCOL if the bytes are no frame.
  Result<bool> next(Frame& frame);

  // Takes bytes that are in no frame, after a frame that says that they follow. Returns how many
  // there were now, at most `bytes`.
  Result<size_t> take_raw(void* to, size_t bytes);

  void queue(FrameType type, ByteView payload);
  bool flushed() const { return out_.empty(); }  // nothing queued is left
  // Writes what the socket takes. Returns whether that was everything.
  Result<bool> pump_out();

  // The following functions are for callers' threads. They send and receive whole frames, and wait
  // until the deadline passes or `broken` returns an error, which they return.
  Status send(FrameType type, ByteView payload, Deadline deadline, const BreakCheck& broken = {});
  Status flush(Deadline deadline, const BreakCheck& broken = {});
  // Returns the next frame, or, if that is a Failure, the status that it carries. If `passed` is
  // given, it gets a descriptor that came with the frame.
  Result<Frame> receive(Deadline deadline, Fd* passed = nullptr, const BreakCheck& broken = {});
  // Returns the payload of the next frame, which must be of this type.
  Result<Bytes> expect(FrameType type, Deadline deadline, Fd* passed = nullptr,
                       const BreakCheck& broken = {});
  // Sends a frame with a descriptor at once, past the queue, so nothing may be queued. Does not
  // wait; fails with FSCCL_ERR_LINK if the socket does not take the whole frame.
  Status send_descriptor(FrameType type, ByteView payload, int passed);
  void shutdown();
  void end_sending();    // the other side sees the end after what was written
  bool arrived() const;  // the other system has received all that was written

 private:
  Status pump_in(Fd* passed);

  Fd fd_;
  size_t max_payload_bytes_ = kMaxRequestBytes;
  Bytes in_, out_;
  size_t in_used_ = 0, out_sent_ = 0;  // bytes at the front of in_ and out_ that are used and sent
};

}  // namespace fsccl
