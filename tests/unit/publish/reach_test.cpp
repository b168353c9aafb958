// Tests how a subscriber reaches a rank: attempts go on until the time has passed, at all
// addresses, and an error says what each address answered.
#include "publish/reach.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <limits>
#include <optional>
#include <thread>
#include <vector>

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
  // A port of 127.0.0.1 and the like that is taken, so nobody else gets it, and refuses: nobody
  // listens there yet.
  struct ClosedPort {
    ClosedPort() : fd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
      const int on = 1, off = 0;
      setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      const SocketAddress any = tcp_address({}, 0);
      EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&any.storage), any.bytes), 0);
    }
    uint16_t number() const { return port_of(local_address(fd.get())); }
    Fd fd;
  };
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
  const ClosedPort own;
  const uint16_t port = own.number();
  Fd listener = listen_tcp(port).take();
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
  const ClosedPort closed;
  const SocketAddress first = local(port_of(local_address(silent.get()))),
                      second = local(closed.number(), 2);
  const int64_t begin = now_ns();
  const Result<Reached> found = reach({second, first}).until(Deadline::in_ms(300), kNoLimit);
  EXPECT_LT(now_ns() - begin, 1'500'000'000);
  EXPECT_GE(now_ns() - begin, 300'000'000);
  EXPECT_EQ(found.status().code(), FSCCL_ERR_TIMEOUT);
  EXPECT_THAT(found.status().text(), HasSubstr(describe(first) + ": no answer"));
  EXPECT_THAT(found.status().text(), HasSubstr(describe(second) + ": Connection refused"));
}

// The last attempt ends with the time, and the answer to the one before says why nothing was found.
TEST_F(Reaching, AnAttemptThatIsCutShortHidesNoAnswer) {
  const Fd listener = listen_tcp(0).take();
  std::thread first([&] { turn_one_away(listener); });
  const Result<Reached> found =
      reach({local(port_of(local_address(listener.get())))}).until(Deadline::in_ms(500), kNoLimit);
  first.join();
  EXPECT_EQ(found.status().code(), FSCCL_ERR_LINK) << found.status().text();
}

TEST_F(Reaching, RefusalsAreCountedWhereTheRankHasListened) {
  const ClosedPort closed;
  const SocketAddress address = local(closed.number());
  const Result<Reached> found = reach({address}).until(Deadline::in_ms(kPatienceMs), 3);
  EXPECT_EQ(found.status().code(), FSCCL_ERR_LINK);
}

// Nobody is at the first address, and somebody else at the second.
TEST_F(Reaching, TheRankIsFoundAtItsLastAddress) {
  const ClosedPort closed;
  const SocketAddress nobody = local(closed.number());
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

// The process has no descriptor left, so no rank can answer.
TEST_F(Reaching, ALimitOfThisProcessEndsTheAttempts) {
  FakeRank rank(key_, 0);
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(next);
  rlimit before{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const int64_t begin = now_ns();
  const Result<Reached> found =
      reach({local(rank.port())}).until(Deadline::in_ms(kPatienceMs), kNoLimit);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LT(now_ns() - begin, kPatienceMs * 1'000'000 / 2);
  EXPECT_EQ(found.status().code(), FSCCL_ERR_LIMIT);
  EXPECT_THAT(found.status().text(), HasSubstr("ulimit -n"));
}

// An address at which somebody else is says nothing against the one that refuses still.
TEST_F(Reaching, OneFinalAnswerDoesNotEndTheAttemptsAtTheOtherAddresses) {
  FakeRank other(key_, 1);
  const ClosedPort closed;
  std::optional<FakeRank> wanted;
  const auto is_two = [&](const Reached& reached) {
    if (reached.rank == 2) return success();
    if (!wanted) wanted.emplace(key_, 2, closed.number());
    return fail(FSCCL_ERR_MISMATCH, "rank {}", reached.rank);
  };
  Result<Reached> found = reach({local(closed.number()), local(other.port())}, is_two)
                              .until(Deadline::in_ms(kPatienceMs), kNoLimit);
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_EQ(found.value().rank, 2);
}

// With a full backlog a listener accepts no connection, and answers nothing.
TEST_F(Reaching, AnAddressThatIsSilentDoesNotHideRefusals) {
  const ClosedPort closed, full;
  EXPECT_EQ(listen(full.fd.get(), 0), 0);
  std::vector<Fd> waiting;
  for (int i = 0; i < 4; i++) {
    const SocketAddress address = local(full.number());
    waiting.emplace_back(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)connect(waiting.back().get(), reinterpret_cast<const sockaddr*>(&address.storage),
                  address.bytes);
  }
  const Result<Reached> found =
      reach({local(closed.number()), local(full.number())}).until(Deadline::in_ms(kPatienceMs), 1);
  EXPECT_EQ(found.status().code(), FSCCL_ERR_LINK);
}

}  // namespace
}  // namespace fsccl::publish
