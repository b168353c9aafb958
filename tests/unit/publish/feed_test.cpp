// Tests a rank and one subscriber over a socket. A subscriber that does not read what it has asked
// for is noticed, costs no more than what it has asked for, and continues where it was.
#include "publish/feed.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <vector>

#include "publish/link.h"

namespace fsccl::publish {
namespace {

constexpr uint64_t kFeedWords = 8 * kDeltaBlockWords;  // 2 MiB, which no socket holds

class Ends {
 public:
  Ends() : history(kFeedWords, 4 * kFeedWords) {
    range_.words = kFeedWords;
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    feed = std::make_unique<Feed>(std::make_shared<FramedSocket>(Fd(fds[0]), 64), 0);
    link.connect(FramedSocket(Fd(fds[1]), kMaxRequestBytes), 0);
    publish();
  }
  ~Ends() { feed->stop(history); }
  void publish() {
    words[history.version() * 1000]++;
    history.begin(true);
    for (size_t block = 0; block < range_.blocks(); block++) {
      history.keep(block);
      history.encode(block, words.data() + range_.block_begin(block), DeltaForm::coded, scratch);
      history.add_encoded(block);
    }
    history.end(0);
  }
  // Runs both sides until the link has the version.
  bool brings(uint64_t version, int64_t now_ns) {
    for (int i = 0; i < 1000 && !link.ready(version); i++) {
      EXPECT_TRUE(link.read(now_ns).ok());
      EXPECT_TRUE(feed->read(history).ok());
      EXPECT_TRUE(feed->write(history, now_ns).ok());
    }
    return link.ready(version) && link.apply(scratch) &&
           std::equal(words.begin(), words.end(), link.words());
  }

  std::vector<uint16_t> words = std::vector<uint16_t>(kFeedWords);
  History history;
  DeltaScratch scratch;
  std::unique_ptr<Feed> feed;

 private:
  WordRange range_;

 public:
  Link link{range_};
};

TEST(Feed, KnowsWhoTakesNothing) {
  Ends ends;
  ASSERT_TRUE(ends.link.ask(1).ok());
  ASSERT_TRUE(ends.feed->read(ends.history).ok());
  for (const int64_t now : {10, 20, 30, 40}) ASSERT_TRUE(ends.feed->write(ends.history, now).ok());
  EXPECT_GT(ends.feed->stuck_for_ns(1'000'000), 900'000);
  ASSERT_TRUE(ends.brings(1, 2'000'000));
  EXPECT_LT(ends.feed->stuck_for_ns(2'000'000), 1'000);
}

// A subscriber that takes little at a time would keep a whole copy for ever.
TEST(Feed, KnowsWhoTakesLittle) {
  Ends ends;
  ASSERT_TRUE(ends.link.ask(1).ok());
  ASSERT_TRUE(ends.feed->read(ends.history).ok());
  constexpr int64_t kTurn = 1'000'000;
  std::vector<char> taken(128u << 10);
  int64_t now = 0;
  const auto take = [&](size_t bytes, int turns) {
    for (int turn = 0; turn < turns; turn++) {
      now += kTurn;
      (void)::recv(ends.link.fd(), taken.data(), bytes, 0);
      ASSERT_TRUE(ends.feed->write(ends.history, now).ok());
    }
  };
  take(1, 1);
  take(2048, 120);  // the first turns also fill what the socket holds
  EXPECT_GT(ends.feed->stuck_for_ns(now), 60 * kTurn);
  take(taken.size(), 8);
  EXPECT_LT(ends.feed->stuck_for_ns(now), 8 * kTurn);
}

// Versions are published while the subscriber does not read, and it is told of them only when it
// reads again.
TEST(Feed, NothingPilesUpForWhoTakesNothing) {
  Ends ends;
  ASSERT_TRUE(ends.link.ask(1).ok());
  ASSERT_TRUE(ends.feed->read(ends.history).ok());
  const std::vector<uint16_t> first = ends.words;
  for (int i = 0; i < 20; i++) {
    ASSERT_TRUE(ends.feed->write(ends.history, i).ok());
    ends.feed->tell_alive();
    ends.publish();
  }
  EXPECT_LE(ends.history.held_bytes(), ends.history.limit_bytes());
  const std::vector<uint16_t> last = std::exchange(ends.words, first);
  ASSERT_TRUE(ends.brings(1, 100));
  ends.words = last;
  ASSERT_TRUE(ends.link.ask(21).ok());
  ASSERT_TRUE(ends.brings(21, 200));
  EXPECT_EQ(ends.feed->whole_copies(), 1u);  // the versions after the first came as records
}

TEST(Feed, AnswersNothingButItsMessages) {
  for (const FrameType type : {FrameType::kNews, FrameType::kVersion, FrameType::kFailure}) {
    Ends ends;
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    FramedSocket stranger(Fd(fds[0]), kMaxRequestBytes);
    Feed feed(std::make_shared<FramedSocket>(Fd(fds[1]), 64), 0);
    stranger.queue(type, encode_version(1));
    ASSERT_TRUE(stranger.pump_out().ok());
    EXPECT_EQ(feed.read(ends.history).code(), FSCCL_ERR_PROTOCOL);
  }
}

}  // namespace
}  // namespace fsccl::publish
