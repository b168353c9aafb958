#include "transports/tcp/greeting.h"

#include <fmt/format.h>

namespace fsccl::tcp {
namespace {

constexpr size_t kLongest = kFrameHeaderBytes + kChallengeBytes;
static_assert(kHelloBytes <= kChallengeBytes && kProofBytes <= kChallengeBytes);

Nonce fresh() {
  Nonce nonce;
  random_bytes(nonce.data(), nonce.size());
  return nonce;
}

// Sends a frame. The socket has room for it, because next to nothing was sent through it yet.
Status say(int fd, FrameType type, ByteView payload) {
  const Bytes frame = encode_frame(type, payload);
  for (size_t sent = 0; sent < frame.size();) {
    FSCCL_ASSIGN(const size_t now, send_some(fd, frame.data() + sent, frame.size() - sent));
    if (now == 0) return fail(FSCCL_ERR_LINK, "the other side does not read");
    sent += now;
  }
  return success();
}

}  // namespace

Result<bool> FrameReader::read(int fd, FrameType type, size_t payload_bytes) {
  const size_t whole = kFrameHeaderBytes + payload_bytes;
  if (whole > kLongest) return bad_payload("handshake");
  while (have_ < whole) {
    const size_t wanted = (have_ < kFrameHeaderBytes ? kFrameHeaderBytes : whole) - have_;
    FSCCL_ASSIGN(const size_t got, receive_some(fd, bytes_.data() + have_, wanted));
    if (got == 0) return false;
    have_ += got;
    if (have_ != kFrameHeaderBytes) continue;
    FSCCL_ASSIGN(const FrameHeader header,
                 decode_header(ByteView(bytes_).first(kFrameHeaderBytes), payload_bytes));
    if (header.type != type || header.payload_bytes != payload_bytes)
      return bad_payload("handshake");
  }
  return true;
}

Caller::Caller(Fd fd, const SocketAddress& address, const Credentials& credentials, int from,
               int to, int ranks)
    : fd_(std::move(fd)),
      address_(address),
      handshake_(credentials, Purpose::kLink, 0, from, ranks, fresh()),
      to_(to) {}

Result<bool> Caller::go_on() {
  if (step_ == Step::connecting) {
    FSCCL_TRY(finish_connecting(fd(), address_));
    FSCCL_TRY(say(fd(), FrameType::kHello, handshake_.hello()));
    step_ = Step::challenge;
  }
  if (step_ == Step::challenge) {
    FSCCL_ASSIGN(const bool there, reader_.read(fd(), FrameType::kChallenge, kChallengeBytes));
    if (!there) return false;
    FSCCL_ASSIGN(const Bytes proof, handshake_.answer(reader_.payload()));
    reader_.next();
    if (handshake_.peer().rank != to_)
      return fail(FSCCL_ERR_AUTH, "{}: this is rank {}, not {}", describe(address_),
                  handshake_.peer().rank, to_);
    FSCCL_TRY(handshake_.compare_versions());
    FSCCL_TRY(say(fd(), FrameType::kProof, proof));
    step_ = Step::linked;
  }
  return reader_.read(fd(), FrameType::kLinked, 0);
}

Visitor::Visitor(Fd fd, const Credentials& credentials, int rank, int64_t deadline_ns)
    : fd_(std::move(fd)),
      deadline_ns_(deadline_ns),
      rank_(rank),
      handshake_(credentials, 0, rank, fresh()) {}

Result<std::optional<int>> Visitor::go_on(int ranks) {
  if (!challenged_) {
    FSCCL_ASSIGN(const bool there, reader_.read(fd(), FrameType::kHello, kHelloBytes));
    if (!there) return std::optional<int>();
    FSCCL_ASSIGN(const Bytes challenge, handshake_.challenge(reader_.payload()));
    reader_.next();
    const Hello& hello = handshake_.peer();
    if (hello.purpose != Purpose::kLink || hello.ranks != ranks || hello.rank < 0 ||
        hello.rank >= ranks || hello.rank == rank_)
      return bad_payload("Hello");
    FSCCL_TRY(say(fd(), FrameType::kChallenge, challenge));
    challenged_ = true;
  }
  FSCCL_ASSIGN(const bool there, reader_.read(fd(), FrameType::kProof, kProofBytes));
  if (!there) return std::optional<int>();
  FSCCL_TRY(handshake_.check(reader_.payload()));
  FSCCL_TRY(handshake_.compare_versions());
  return std::optional<int>(handshake_.peer().rank);
}

Status Visitor::welcome() { return say(fd(), FrameType::kLinked, {}); }

}  // namespace fsccl::tcp
