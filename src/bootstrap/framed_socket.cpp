#include "bootstrap/framed_socket.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/socket.h"

namespace fsccl {

namespace {

constexpr size_t kReadBytes = 16 * 1024;
constexpr int kReadsAtOnce = 32;  // so that one busy link does not keep the service thread

}  // namespace

Status FramedSocket::pump_in() { return pump_in(nullptr); }

Status FramedSocket::pump_in(Fd* passed) {
  if (in_used_ > 0) {
    in_.erase(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(in_used_));
    in_used_ = 0;
  }
  for (int i = 0; i < kReadsAtOnce; ++i) {
    uint8_t piece[kReadBytes];
    Result<size_t> count = passed ? receive_with_fd(fd_.get(), piece, sizeof(piece), passed)
                                  : receive_some(fd_.get(), piece, sizeof(piece));
    if (!count.ok()) return count.take_status();
    in_.insert(in_.end(), piece, piece + count.value());
    if (count.value() < sizeof(piece)) return success();  // all that was there
    if (in_.size() > max_payload_bytes_ + kFrameHeaderBytes) return success();
  }
  return success();
}

Result<bool> FramedSocket::next(Frame& frame) {
  const ByteView unread = ByteView(in_).subspan(in_used_);
  if (unread.size() < kFrameHeaderBytes) return false;
  FSCCL_ASSIGN(const FrameHeader header, decode_header(unread, max_payload_bytes_));
  if (unread.size() - kFrameHeaderBytes < header.payload_bytes) return false;
  const ByteView payload = unread.subspan(kFrameHeaderBytes, header.payload_bytes);
  FSCCL_TRY(check_payload(header, payload));
  frame.type = header.type;
  frame.payload.assign(payload.begin(), payload.end());
  in_used_ += kFrameHeaderBytes + header.payload_bytes;
  return true;
}

Result<size_t> FramedSocket::take_raw(void* to, size_t bytes) {
  const size_t buffered = std::min(bytes, in_.size() - in_used_);
  if (buffered == 0) return receive_some(fd_.get(), to, bytes);
  std::memcpy(to, in_.data() + in_used_, buffered);
  in_used_ += buffered;
  return buffered;
}

void FramedSocket::queue(FrameType type, ByteView payload) {
  const Bytes frame = encode_frame(type, payload);
  out_.insert(out_.end(), frame.begin(), frame.end());
}

Result<bool> FramedSocket::pump_out() {
  while (out_sent_ < out_.size()) {
    FSCCL_ASSIGN(const size_t count,
                 send_some(fd_.get(), out_.data() + out_sent_, out_.size() - out_sent_));
    if (count == 0) return false;
    out_sent_ += count;
  }
  out_.clear();
  out_sent_ = 0;
  return true;
}

Status FramedSocket::flush(Deadline deadline, const BreakCheck& broken) {
  for (;;) {
    FSCCL_ASSIGN(const bool all, pump_out());
    if (all) return success();
    FSCCL_TRY(wait_ready(fd_.get(), Direction::kWrite, deadline, broken));
  }
}

Status FramedSocket::send(FrameType type, ByteView payload, Deadline deadline,
                          const BreakCheck& broken) {
  queue(type, payload);
  return flush(deadline, broken);
}

Result<Frame> FramedSocket::receive(Deadline deadline, Fd* passed, const BreakCheck& broken) {
  Frame frame;
  Status closed;
  for (;;) {
    FSCCL_ASSIGN(const bool complete, next(frame));
    if (complete) break;
    if (!closed.ok()) return closed;
    FSCCL_TRY(wait_ready(fd_.get(), Direction::kRead, deadline, broken));
    closed = pump_in(passed);
  }
  if (frame.type != FrameType::kFailure) return frame;
  FSCCL_ASSIGN(const Failure failure, decode_failure(frame.payload));
  return to_status(failure);
}

Result<Bytes> FramedSocket::expect(FrameType type, Deadline deadline, Fd* passed,
                                   const BreakCheck& broken) {
  FSCCL_ASSIGN(Frame frame, receive(deadline, passed, broken));
  if (frame.type != type)
    return fail(FSCCL_ERR_PROTOCOL, "a message of type {} arrived, {} was expected",
                static_cast<int>(frame.type), static_cast<int>(type));
  return std::move(frame.payload);
}

Status FramedSocket::send_descriptor(FrameType type, ByteView payload, int passed) {
  const Bytes frame = encode_frame(type, payload);
  FSCCL_ASSIGN(const size_t count, send_with_fd(fd_.get(), frame.data(), frame.size(), passed));
  return count == frame.size() ? success() : fail(FSCCL_ERR_LINK, "the other side does not read");
}

void FramedSocket::shutdown() {
  if (fd_.valid()) shut_down(fd_.get());
}

void FramedSocket::end_sending() {
  if (fd_.valid()) fsccl::end_sending(fd_.get());
}

bool FramedSocket::arrived() const { return fsccl::arrived(fd_.get()); }

}  // namespace fsccl
