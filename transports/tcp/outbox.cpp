#include "transports/tcp/outbox.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/socket.h"
#include "base/undo.h"

namespace fsccl::tcp {
namespace {

constexpr size_t kAtOnce = 16;  // pieces in one system call
// up to so many bytes are copied behind their head, because a second piece would cost more
constexpr size_t kSmallBytes = 1024;

// Writes as many bytes of the pieces as the socket takes, and returns their number; returns -1 if
// the socket is of no use any more.
ssize_t write_some(int fd, iovec* pieces, size_t count) {
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  while (true) {
    const ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return -1;
  }
}

}  // namespace

bool Outbox::send(int fd, const Head& head, mirror::Payload&& payload, bool more) {
  if (!messages_.empty() || fd < 0) {
    keep(head, 0, std::move(payload));
    return true;
  }
  if (!more && held_.empty() && payload.bytes <= kSmallBytes) {
    std::array<std::byte, sizeof head + kSmallBytes> whole;
    std::memcpy(whole.data(), &head, sizeof head);
    if (payload.bytes) std::memcpy(whole.data() + sizeof head, payload.source, payload.bytes);
    const Result<size_t> sent = send_some(fd, whole.data(), sizeof head + payload.bytes);
    if (!sent.ok()) return false;
    if (sent.value() < sizeof head + payload.bytes) keep(head, sent.value(), std::move(payload));
    return true;
  }
  Held& last = held_.emplace_back();
  last.head = head;
  last.payload = std::move(payload);
  if (more && 2 * (held_.size() + 1) <= kAtOnce) return true;
  // Held messages are dropped even if keep() finds no memory: their sources are the caller's again.
  const Undo over([this] { held_.clear(); });
  std::array<iovec, kAtOnce> pieces;
  size_t count = 0;
  for (Held& held : held_) {
    pieces[count++] = {&held.head, sizeof(Head)};
    if (held.payload.bytes)
      pieces[count++] = {const_cast<void*>(held.payload.source), held.payload.bytes};
  }
  const ssize_t sent = write_some(fd, pieces.data(), count);
  if (sent < 0) return false;
  auto left = static_cast<size_t>(sent);
  for (Held& held : held_) {
    const size_t all = sizeof(Head) + held.payload.bytes, now = std::min(left, all);
    left -= now;
    if (now < all) keep(held.head, now, std::move(held.payload));
  }
  return true;
}

void Outbox::keep(const Head& head, size_t sent, mirror::Payload&& payload) {
  Message& message = messages_.emplace_back();
  message.head = head;
  message.sent = sent;
  if (payload.bytes == 0) return;
  const size_t written = sent > sizeof head ? sent - sizeof head : 0;
  const auto* const source = static_cast<const std::byte*>(payload.source);
  if (!payload.ring) {
    message.own.assign(source, source + payload.bytes);
    message.data = message.own.data();
    return;
  }
  if (payload.ring != source)
    std::memcpy(payload.ring + written, source + written, payload.bytes - written);
  message.data = payload.ring;
  message.memory = std::move(payload.memory);
}

bool Outbox::flush(int fd) {
  while (!messages_.empty()) {
    std::array<iovec, kAtOnce> pieces;
    size_t count = 0, asked = 0;
    const auto add = [&](const void* data, size_t bytes, size_t skip) {
      if (skip >= bytes) return;
      pieces[count++] = {const_cast<char*>(static_cast<const char*>(data)) + skip, bytes - skip};
      asked += bytes - skip;
    };
    for (auto message = messages_.begin(); message != messages_.end() && count + 2 <= kAtOnce;
         ++message) {
      add(&message->head, sizeof(Head), message->sent);
      add(message->data, message->head.bytes,
          message->sent > sizeof(Head) ? message->sent - sizeof(Head) : 0);
    }
    const ssize_t sent = write_some(fd, pieces.data(), count);
    if (sent < 0) return false;
    for (auto left = static_cast<size_t>(sent); left > 0;) {
      Message& first = messages_.front();
      const size_t now = std::min(left, sizeof(Head) + first.head.bytes - first.sent);
      first.sent += now;
      left -= now;
      if (first.sent == sizeof(Head) + first.head.bytes) messages_.pop_front();
    }
    if (static_cast<size_t>(sent) < asked) return true;
  }
  return true;
}

}  // namespace fsccl::tcp
