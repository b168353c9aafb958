// Tests sending over a socket that takes all bytes, a part of them, or none.
#include "transports/tcp/outbox.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/socket.h"

namespace fsccl::tcp {
namespace {

constexpr int kPatienceMs = 60'000;  // tests fail if bytes take longer

class OutboxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<Fd> door = listen_tcp(0);
    ASSERT_TRUE(door.ok());
    const IpAddress loopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
    const Deadline deadline = Deadline::in_ms(kPatienceMs);
    Result<Fd> call =
        connect_to(tcp_address(loopback, port_of(local_address(door.value().get()))), deadline);
    ASSERT_TRUE(call.ok() && wait_ready(door.value().get(), Direction::kRead, deadline).ok());
    Result<Fd> answer = accept_connection(door.value().get());
    ASSERT_TRUE(answer.ok());
    here_ = call.take();
    there_ = answer.take();
  }
  // Sends different bytes each time. If no more messages follow at once, the test overwrites the
  // memory, which must not change the bytes that are sent.
  void send(size_t bytes, bool more = false) {
    std::vector<std::byte> data(bytes);
    for (size_t i = 0; i < bytes; i++) data[i] = static_cast<std::byte>(i + sent_);
    mirror::Header header{};
    header.kind = mirror::MessageKind::bytes;
    header.at = sent_++;
    const Head head = make_head(header, bytes, false);
    append(&head, sizeof head);
    append(data.data(), bytes);
    kept_.push_back(std::move(data));
    mirror::Payload payload;
    payload.source = kept_.back().data();
    payload.bytes = bytes;
    EXPECT_TRUE(out_.send(here_.get(), head, std::move(payload), more));
    if (more) return;
    for (auto& each : kept_) std::fill(each.begin(), each.end(), std::byte{0xee});
    kept_.clear();
  }
  // Receives all bytes that were sent, and meanwhile lets the outbox send the rest.
  std::vector<std::byte> received() {
    std::vector<std::byte> got(meant_.size());
    for (size_t at = 0; at < got.size();) {
      pollfd ready{there_.get(), POLLIN, 0};
      EXPECT_TRUE(out_.flush(here_.get()));
      if (poll(&ready, 1, kPatienceMs) != 1) break;
      const ssize_t now = recv(there_.get(), got.data() + at, got.size() - at, MSG_DONTWAIT);
      if (now <= 0) break;
      at += static_cast<size_t>(now);
    }
    return got;
  }
  void append(const void* data, size_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(data);
    meant_.insert(meant_.end(), begin, begin + bytes);
  }

  Fd here_, there_;
  Outbox out_;
  uint64_t sent_ = 0;
  std::vector<std::vector<std::byte>> kept_;
  std::vector<std::byte> meant_;
};

TEST_F(OutboxTest, MessagesOfEachSizeArriveAsTheyWereGiven) {
  for (const size_t bytes : {0, 1, 64, 1023, 1024, 1025, 5000}) {
    send(bytes);
    EXPECT_TRUE(out_.empty()) << bytes;
  }
  EXPECT_EQ(received(), meant_);
}

TEST_F(OutboxTest, WhatTheSocketDoesNotTakeGoesLater) {
  for (const size_t bytes : {100, 1000, 3000}) {
    meant_.clear();
    while (out_.empty()) send(bytes);
    for (int i = 0; i < 10; i++) send(bytes);  // must go behind the bytes that wait
    EXPECT_EQ(received(), meant_) << bytes;
  }
}

TEST_F(OutboxTest, WhatWaitsForTheNextGoesBeforeIt) {
  send(10, true);
  std::byte none;
  EXPECT_EQ(recv(there_.get(), &none, 1, MSG_DONTWAIT | MSG_PEEK), -1);
  send(20);
  EXPECT_EQ(received(), meant_);
}

TEST_F(OutboxTest, TheEndOfTheSocketIsTold) {
  ASSERT_EQ(shutdown(here_.get(), SHUT_WR), 0);
  EXPECT_FALSE(out_.send(here_.get(), make_head({}, 0, false), {}));
}

}  // namespace
}  // namespace fsccl::tcp
