// Tests where a channel between hosts puts incoming bytes, over each transport that mirrors slots.
#include "transports/mirror/channel.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <future>
#include <thread>

#include "base/clock.h"
#include "channel_pair.h"
#include "transports/transports.h"

namespace fsccl::mirror {
namespace {

// Two ranks of a job and a channel of both, in this process.
class MirrorChannelTest : public ChannelPair,
                          public ::testing::WithParamInterface<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    std::string why;
    transport_ = usable_transport(std::get<0>(GetParam()), &why);
    if (!transport_) GTEST_SKIP() << why;
    std::vector<uint8_t> endpoints(2 * kEndpointRoom);
    for (int rank = 0; rank < 2; rank++) {
      Result<std::unique_ptr<TransportNode>> joined = transport_->join(
          {sizeof(fsccl_transport_job_t), rank, 2, key_.data(), std::get<1>(GetParam()), nullptr});
      ASSERT_TRUE(joined.ok()) << joined.status().text();
      nodes_[rank] = joined.take();
      const std::vector<uint8_t>& mine = nodes_[rank]->endpoint();
      std::copy(mine.begin(), mine.end(), &endpoints[static_cast<size_t>(rank) * kEndpointRoom]);
    }
    for (int rank = 0; rank < 2; rank++) {
      const Status connected = nodes_[rank]->connect(endpoints.data(), kEndpointRoom);
      ASSERT_TRUE(connected.ok()) << connected.text();
      open(rank, static_cast<Node&>(*nodes_[rank]));
    }
  }
  void TearDown() override {
    for (auto& channel : channels_) channel.reset();
    std::thread other([this] { nodes_[1].reset(); });  // each leaves when the other does
    nodes_[0].reset();
    other.join();
  }

  const Transport* transport_ = nullptr;
  std::array<uint8_t, 32> key_{3};
  std::array<std::unique_ptr<TransportNode>, 2> nodes_{};
};

TEST_P(MirrorChannelTest, BytesThatAreExpectedGoToWhereTheyAreWanted) {
  channels_[1]->expect(0, 1, 4096, wanted_.data(), wanted_.size());
  send(1, 4096);
  receive(1);
  EXPECT_TRUE(channels_[1]->placed(0, 1, 4096, wanted_.size()));
  EXPECT_EQ(wanted_, sent_);
  EXPECT_EQ(mirror(4096)[0], std::byte{0});
}

TEST_P(MirrorChannelTest, OtherBytesGoToTheMirror) {
  channels_[1]->expect(0, 1, 4096, wanted_.data(), wanted_.size() - 64);  // fewer bytes than come
  channels_[1]->expect(0, 2, 4096, wanted_.data(), wanted_.size());       // another tick
  send(1, 4096);
  receive(1);
  EXPECT_FALSE(channels_[1]->placed(0, 1, 4096, sent_.size()));
  EXPECT_EQ(wanted_[0], std::byte{0});
  EXPECT_EQ(std::memcmp(mirror(4096), sent_.data(), sent_.size()), 0);
}

TEST_P(MirrorChannelTest, AfterAFailureNothingIsWrittenToWhereItWasWanted) {
  channels_[1]->expect(0, 1, 0, wanted_.data(), wanted_.size());
  fsccl_transport_failure_t failure{};
  failure.code = FSCCL_ERR_ABORTED;
  channels_[1]->fail(failure);
  send(1, 0);
  receive(1);
  EXPECT_FALSE(channels_[1]->placed(0, 1, 0, wanted_.size()));
  EXPECT_EQ(wanted_[0], std::byte{0});
}

TEST_P(MirrorChannelTest, BytesThatComeTwiceAreWrittenOnce) {
  channels_[1]->expect(0, 1, 0, wanted_.data(), wanted_.size());
  send(1, 0);
  receive(1);
  wanted_.fill(std::byte{2});  // the memory belongs to the caller again
  send(1, 0);
  send(2, 0);
  receive(2);
  EXPECT_EQ(wanted_[0], std::byte{2});
}

// Plans in steps signal to few peers, so two ranks may have no messages for each other while ticks
// go round.
TEST_P(MirrorChannelTest, WhatComesAfterManyTicksIsNotLate) {
  for (const uint32_t tick : {1u, 1u + (1u << 31), 17u + (1u << 31), 33u}) {
    sent_.fill(static_cast<std::byte>(tick >> 28 | 1));
    send(tick, 4096);
    receive(tick);
    EXPECT_EQ(std::memcmp(mirror(4096), sent_.data(), sent_.size()), 0) << tick;
  }
}

TEST_P(MirrorChannelTest, NothingIsExpectedOfATickThatIsThere) {
  send(1, 0);
  receive(1);
  channels_[1]->expect(0, 1, 0, wanted_.data(), wanted_.size());
  send(1, 0);
  send(2, 4096);
  receive(2);
  EXPECT_FALSE(channels_[1]->placed(0, 1, 0, wanted_.size()));
  EXPECT_EQ(wanted_[0], std::byte{0});
}

// Each rank sends more than a socket takes, while no rank reads. No message is lost, no sender
// waits, and the receiver gets the bytes as they were at the signal, whatever the sender writes to
// its buffer after it.
TEST_P(MirrorChannelTest, WhatDoesNotLeaveAtOnceIsSentAsItWas) {
  size_t ring = 0, slot = 0;
  channels_[0]->slots(0, &ring, &slot);
  const size_t each = sent_.size(),
               ticks = std::min<size_t>(ring / each, FSCCL_TRANSPORT_TICKS - 1);
  for (uint32_t tick = 1; tick <= ticks; tick++)
    for (int rank = 0; rank < 2; rank++) {
      sent_.fill(static_cast<std::byte>(tick + 100 * static_cast<uint32_t>(rank)));
      send(tick, (tick - 1) * each, rank);
    }
  sent_.fill(std::byte{0xff});
  for (uint32_t tick = 1; tick <= ticks; tick++)
    for (int rank = 0; rank < 2; rank++) {
      receive(tick, rank);
      const std::byte* const came = mirror((tick - 1) * each, rank);
      const auto meant = static_cast<std::byte>(tick + 100 * static_cast<uint32_t>(1 - rank));
      EXPECT_EQ(std::count(came, came + each, meant), static_cast<ptrdiff_t>(each)) << tick;
    }
}

// After hold() messages may leave together with the next one. They arrive in order and whole, also
// if the socket does not take all bytes at once.
TEST_P(MirrorChannelTest, WhatIsHeldLeavesWithTheNext) {
  std::vector<std::byte> large(size_t{1} << 20, std::byte{7});
  const auto put = [&](uint32_t tick, const void* source, size_t bytes, size_t at) {
    if (tick % 4) channels_[0]->hold();
    channels_[0]->put(1, at, source, bytes);
    fsccl_transport_line_t line{};
    line.tick = tick;
    channels_[0]->signal(line);
  };
  send(1, 0);  // makes the connection to the peer
  receive(1);
  size_t ring = 0, slot = 0;
  channels_[0]->slots(0, &ring, &slot);
  const size_t each = std::min(slot, large.size());
  for (uint32_t tick = 2; tick <= 8; tick++) {
    put(tick, large.data(), each, (tick - 2) * each);
    const int looks = tick < 4 && std::string_view(transport_->name()) == "tcp" ? 100 : 0;
    for (int i = 0; i < looks; i++) EXPECT_EQ(channels_[1]->poll(0, 2), nullptr) << tick;
    // After a message that is not held, the memory belongs to the sender again.
    if (tick % 4 == 0) std::fill(large.begin(), large.end(), static_cast<std::byte>(tick));
  }
  for (uint32_t tick = 2; tick <= 8; tick++) {
    receive(tick);
    const std::byte* const came = mirror((tick - 2) * each);
    EXPECT_EQ(std::count(came, came + each, tick <= 4 ? std::byte{7} : std::byte{4}),
              static_cast<ptrdiff_t>(each))
        << tick;
  }
}

// While one thread polls the node, others do not wait for it. Only hear_out() waits, because it
// must see everything that has arrived.
TEST_P(MirrorChannelTest, WhoIsHeardOutHasBeenHeardWhoeverElseListens) {
  for (int from = 0; from < 2; from++) {
    send(1, 0, from);
    receive(1, 1 - from);
  }
  fsccl_transport_failure_t failure{};
  failure.code = FSCCL_ERR_ABORTED;
  std::unique_lock listening(static_cast<Node&>(*nodes_[1]).mutex());
  channels_[0]->fail(failure);
  EXPECT_EQ(channels_[1]->failure(), nullptr);
  std::future<void> heard = std::async(std::launch::async, [this] { channels_[1]->hear_out(); });
  EXPECT_EQ(heard.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  listening.unlock();
  heard.get();
  while (!channels_[1]->failure()) channels_[1]->hear_out();  // the failure may still be on its way
  EXPECT_EQ(channels_[1]->failure()->code, FSCCL_ERR_ABORTED);
}

TEST_P(MirrorChannelTest, AFailureIsToldToThePeer) {
  fsccl_transport_failure_t failure{};
  failure.code = FSCCL_ERR_ABORTED;
  failure.rank = 0;
  failure.peer = -1;
  std::strcpy(failure.text, "told");
  channels_[0]->fail(failure);
  const fsccl_transport_failure_t* there = nullptr;
  while (!(there = channels_[1]->failure())) channels_[0]->failure();
  EXPECT_EQ(there->code, FSCCL_ERR_ABORTED);
  EXPECT_STREQ(there->text, "told");
}

// A rank that leaves does not wait until the other one, which may compute for long, reads its
// messages again.
TEST_P(MirrorChannelTest, WhoHasLeftIsNotLost) {
  constexpr int64_t kGivesUpMs = 10'000;  // the time after which UCX gives up
  send(1, 0);
  receive(1);
  channels_[0].reset();
  const Deadline in_vain = Deadline::in_ms(kGivesUpMs / 2);
  std::thread leaves([this] { nodes_[0].reset(); });
  while (!channels_[1]->left(0)) channels_[1]->poll(0, 2);
  leaves.join();
  EXPECT_FALSE(in_vain.passed());
  // The time is longer than a lost peer takes to become a failure.
  const int64_t until = Deadline::in_ms(400).at_ns();
  while (now_ns() < until) EXPECT_EQ(channels_[1]->failure(), nullptr);
}

TEST(NetworkChoice, UcxIsForMachinesWithRdma) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(::testing::TempDir()) / fmt::format("rdma-{}", getpid());
  EXPECT_FALSE(has_rdma((folder / "none").c_str()));
  fs::create_directories(folder / "empty");
  EXPECT_FALSE(has_rdma((folder / "empty").c_str()));
  fs::create_directories(folder / "one" / "mlx5_0");
  EXPECT_TRUE(has_rdma((folder / "one").c_str()));
  fs::remove_all(folder);
  EXPECT_TRUE(has_rdma() || preferred_network() == std::string_view("tcp"));
}

TEST(NetworkChoice, SettingsHaveTheLastWord) {
  Config settings;
  EXPECT_EQ(asked_network(settings), nullptr);
  settings.network = NetworkChoice::kUcx;
  EXPECT_STREQ(asked_network(settings), "ucx");
  settings.network = NetworkChoice::kTcp;
  EXPECT_STREQ(asked_network(settings), "tcp");
  settings.transport = TransportChoice::kUcx;
  EXPECT_STREQ(asked_network(settings), "ucx");
  settings.transport = TransportChoice::kShm;
  EXPECT_STREQ(asked_network(settings), "tcp");
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<const char*, int>>& info) {
  return std::string(std::get<0>(info.param)) + (std::get<1>(info.param) ? "_checksum" : "");
}
INSTANTIATE_TEST_SUITE_P(Transports, MirrorChannelTest,
                         ::testing::Combine(::testing::Values("tcp", "ucx"),
                                            ::testing::Values(0, 1)),
                         name_of);

}  // namespace
}  // namespace fsccl::mirror
