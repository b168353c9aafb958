// Frames over one socket, never blocking in the service thread and with a deadline elsewhere. Input
// is bounded by the longest payload that its owner allows at the moment, output by what its owner
// queues.
#pragma once
#include <cstdint>

#include "base/fd.h"
#include "base/status.h"
#include "base/wait.h"
#include "wire/frame.h"

namespace fsccl {

// bytes of messages of fixed form, and of everything that a stranger may send
inline constexpr size_t kMaxRequestBytes = 4096;
// bytes that an authenticated member of the job may send
inline constexpr size_t kMaxTableBytes = size_t{1} << 28;

class FramedSocket {
 public:
  FramedSocket() = default;
  FramedSocket(Fd fd, size_t max_payload_bytes)
      : fd_(std::move(fd)), max_payload_bytes_(max_payload_bytes) {}
  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void allow(size_t max_payload_bytes) { max_payload_bytes_ = max_payload_bytes; }

  // Reads what has arrived, up to a bound. FSCCL_ERR_LINK: the other side has closed; frames that
  // came before it are still there for next().
  Status pump_in();
  // Returns true if a whole frame was there. Returns FSCCL_ERR_PROTOCOL if the bytes are no frame.
  Result<bool> next(Frame& frame);

  // Bytes that are in no frame, where the last frame said that they follow: as many as are there
  // now, at most `bytes`.
  Result<size_t> take_raw(void* to, size_t bytes);

  void queue(FrameType type, ByteView payload);
  bool flushed() const { return out_.empty(); }  // nothing queued is left
  // Writes what the socket takes; whether that was everything.
  Result<bool> pump_out();

  // For callers' threads: whole frames, waiting until the deadline passes or `broken` gives an
  // error, which is returned.
  Status send(FrameType type, ByteView payload, Deadline deadline, const BreakCheck& broken = {});
  Status flush(Deadline deadline, const BreakCheck& broken = {});
  // A Failure that arrives is returned as the status it tells. With `passed`, a descriptor that
  // rides on the frame is kept there.
  Result<Frame> receive(Deadline deadline, Fd* passed = nullptr, const BreakCheck& broken = {});
  // The payload of the next frame, which must be of this type.
  Result<Bytes> expect(FrameType type, Deadline deadline, Fd* passed = nullptr,
                       const BreakCheck& broken = {});
  // Answers with a descriptor; for a channel with nothing else to send.
  Status send_descriptor(FrameType type, ByteView payload, int passed);
  void shutdown();
  void end_sending();    // the other side sees the end after what was written
  bool arrived() const;  // all that was written, at the other system

 private:
  Status pump_in(Fd* passed);

  Fd fd_;
  size_t max_payload_bytes_ = kMaxRequestBytes;
  Bytes in_, out_;
  size_t in_used_ = 0, out_sent_ = 0;  // bytes at the front of in_ and out_ that are used and sent
};

}  // namespace fsccl
