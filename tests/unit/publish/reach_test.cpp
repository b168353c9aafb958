// Tests how a subscriber reaches a rank: attempts go on until the time has passed, at all
// addresses, and an error says what each address answered.
#include "publish/reach.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <limits>
#include <optional>
#include <thread>

#include "fake_rank.h"

namespace fsccl::publish {
namespace {

using ::testing::HasSubstr;

constexpr int kNoLimit = std::numeric_limits<int>::max();

class Reaching : public ::testing::Test {
 protected:
  static Status any(const Reached&) { return success(); }
  static SocketAddress local(uint16_t port, uint8_t last = 1) {
    return tcp_address(local_ip(last), port);
  }
  Reach reach(std::vector<SocketAddress> addresses, Reach::Check check = any) {
    return Reach(key_.credentials, key_.number, std::move(addresses), std::move(check), {});
  }
  // Accepts one connection, which it closes.
  static void turn_one_away(const Fd& listener) {
    pollfd waiting{listener.get(), POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, static_cast<int>(kPatienceMs)), 1);
    EXPECT_TRUE(accept_connection(listener.get()).value().valid());
  }

  const PublicationKey key_ = publication_key(SecretKey::random());
};

// The first attempt fails before the rank is there.
TEST_F(Reaching, ARankThatStartsLaterIsFound) {
  Fd listener = listen_tcp(0).take();
  const uint16_t port = port_of(local_address(listener.get()));
  std::optional<FakeRank> rank;
  std::thread later([&] {
    turn_one_away(listener);
    listener.reset();
    rank.emplace(key_, 3, port);
  });
  Result<Reached> found = reach({local(port)}).until(Deadline::in_ms(kPatienceMs), kNoLimit);
  later.join();
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_EQ(found.value().rank, 3);
}

// A listener that answers nothing holds up the attempts at its address. The time that was given
// bounds them, though it is shorter than the time for one attempt.
TEST_F(Reaching, TheTimeBoundsAllAttemptsAndEachAnswerIsTold) {
  const Fd silent = listen_tcp(0).take();
  Fd closed = listen_tcp(0).take();
  const SocketAddress first = local(port_of(local_address(silent.get()))),
                      second = local(port_of(local_address(closed.get())), 2);
  closed.reset();
  const int64_t begin = now_ns();
  const Result<Reached> found = reach({second, first}).until(Deadline::in_ms(300), kNoLimit);
  EXPECT_LT(now_ns() - begin, 1'500'000'000);
  EXPECT_GE(now_ns() - begin, 300'000'000);
  EXPECT_EQ(found.status().code(), FSCCL_ERR_TIMEOUT);
  EXPECT_THAT(found.status().text(), HasSubstr(describe(first) + ": no answer"));
  EXPECT_THAT(found.status().text(), HasSubstr(describe(second) + ": Connection refused"));
}

TEST_F(Reaching, RefusalsAreCountedWhereTheRankHasListened) {
  Fd closed = listen_tcp(0).take();
  const SocketAddress address = local(port_of(local_address(closed.get())));
  closed.reset();
  const Result<Reached> found = reach({address}).until(Deadline::in_ms(kPatienceMs), 3);
  EXPECT_EQ(found.status().code(), FSCCL_ERR_LINK);
}

// Nobody is at the first address, and somebody else at the second.
TEST_F(Reaching, TheRankIsFoundAtItsLastAddress) {
  Fd closed = listen_tcp(0).take();
  const SocketAddress nobody = local(port_of(local_address(closed.get())));
  closed.reset();
  FakeRank other(key_, 1), wanted(key_, 2);
  const auto is_two = [](const Reached& reached) {
    return reached.rank == 2 ? success() : fail(FSCCL_ERR_LINK, "rank {}", reached.rank);
  };
  Result<Reached> found = reach({nobody, local(other.port()), local(wanted.port())}, is_two)
                              .until(Deadline::in_ms(kPatienceMs), 1);
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_EQ(found.value().rank, 2);
}

TEST_F(Reaching, AnAnswerThatCannotChangeEndsTheAttempts) {
  FakeRank rank(key_, 0);
  const auto other = [](const Reached&) { return fail(FSCCL_ERR_MISMATCH, "it is another one"); };
  const Result<Reached> found =
      reach({local(rank.port())}, other).until(Deadline::never(), kNoLimit);
  EXPECT_EQ(found.status().code(), FSCCL_ERR_MISMATCH);
  EXPECT_THAT(found.status().text(), HasSubstr("it is another one"));
}

}  // namespace
}  // namespace fsccl::publish
