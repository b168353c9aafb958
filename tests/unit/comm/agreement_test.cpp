// Tests agreements, in which all ranks learn the result of each, and so know whether all can begin.
#include "comm/agreement.h"

#include <gmock/gmock.h>

#include <map>
#include <mutex>
#include <tuple>

#include "tests/unit/wrapped_channel.h"

namespace fsccl {
namespace {

using namespace testing;
using ::testing::HasSubstr;

constexpr int kNumbers[] = {4, 6, 9};  // the ranks' numbers in messages

Startup startup_of(int rank, Wrapped& wrapped) {
  return {&wrapped, rank, 3, now_ns() + kLimitNs, [] { return false; }, kNumbers};
}

TEST(Agreement, OneThatCannotBeginEndsAll) {
  over_channel(3, [](int rank, Wrapped& channel, uint32_t tick) {
    const uint32_t first = tick;
    Status mine = rank == 1 ? fail(FSCCL_ERR_LIMIT, "no room here") : success();
    const Status status =
        agree_to_begin(startup_of(rank, channel), *config(), std::move(mine), &tick);
    EXPECT_EQ(tick, first + 1);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), rank == 1 ? FSCCL_ERR_LIMIT : FSCCL_ERR_OUT_OF_MEMORY);
    EXPECT_THAT(status.text(), HasSubstr(rank == 1 ? "no room here" : "rank 6 could not begin"));
    EXPECT_EQ(status.error().peer, rank == 1 ? -1 : 6);
  });
}

TEST(Agreement, SettingsThatDifferAreNamedByTheNumbersOfMessages) {
  over_channel(3, [](int rank, Wrapped& channel, uint32_t tick) {
    Config settings = *config();
    settings.eager_bytes = rank == 2 ? 64 : 128;
    const Status status = agree_to_begin(startup_of(rank, channel), settings, success(), &tick);
    EXPECT_EQ(status.code(), FSCCL_ERR_MISMATCH);
    EXPECT_THAT(status.text(),
                HasSubstr(rank == 2 ? "rank 4 has FSCCL_EAGER_BYTES 128, rank 9 has 64"
                                    : "rank 9 has FSCCL_EAGER_BYTES 64, rank"));
  });
}

// A rank trusts neither the code nor the text of a failure that another process reports.
TEST(Agreement, ABoardWithoutAnErrorIsOneOfTheProtocol) {
  for (const int32_t code : {0, 1, FSCCL_ERR_INTERNAL - 1})
    over_channel(3, [code](int rank, Wrapped& channel, uint32_t tick) {
      if (rank == 1) {
        fsccl_transport_failure_t failure{};
        failure.code = code;
        failure.rank = failure.peer = 1;
        std::memset(failure.text, '\x1b', sizeof failure.text);
        return channel.fail(failure);
      }
      const Status status = agree_to_begin(startup_of(rank, channel), *config(), success(), &tick);
      EXPECT_EQ(status.code(), FSCCL_ERR_PROTOCOL);
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.text().find_first_not_of('?'), std::string::npos);
    });
}

// The messages that ranks, which are threads here, send each other. It counts how many each sends.
struct Post {
  static constexpr int kRanks = 13;
  std::mutex mutex;
  std::map<std::tuple<int, int, uint32_t>, fsccl_transport_line_t> lines;  // from, to, tick

  class Box final : public Channel {
   public:
    Box(Post* post, int rank)
        : Channel({.transport = "post", .signals_one = true}), post_(post), rank_(rank) {}
    int sent = 0;

    void signal_to(int peer, const fsccl_transport_line_t& line) override {
      const std::lock_guard lock(post_->mutex);
      post_->lines[{rank_, peer, line.tick}] = line;
      sent++;
    }
    void signal(const fsccl_transport_line_t& line) override {
      for (int peer = 0; peer < kRanks; peer++)
        if (peer != rank_) signal_to(peer, line);
    }
    const fsccl_transport_line_t* poll(int peer, uint32_t tick) override {
      const std::lock_guard lock(post_->mutex);
      const auto found = post_->lines.find({peer, rank_, tick});
      return found == post_->lines.end() ? nullptr : &found->second;
    }
    void word(int, uint32_t, fsccl_transport_word_t* word) override {
      *word = {};
      word->word = word->sleepers = &word_;  // nothing wakes a sleeper, which looks again soon
    }
    std::byte* slots(int, size_t* ring_bytes, size_t* slot_bytes) const override {
      *ring_bytes = *slot_bytes = 4096;
      return nullptr;
    }
    void fail(const fsccl_transport_failure_t&) override {}
    const fsccl_transport_failure_t* failure() override { return nullptr; }
    bool left(int) const override { return false; }
    Result<OpenedChannel> pair(int, int) override {
      return ::fsccl::fail(FSCCL_ERR_INTERNAL, "no pairs");
    }

   private:
    Post* const post_;
    const int rank_;
    uint32_t word_ = 0;
  };

  // Runs `body` on each rank, from tick 5 on, and counts the messages that each sends.
  void run(const std::function<void(Box& box, const Startup& startup)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; rank++)
      threads.emplace_back([&, rank] {
        Box box(this, rank);
        body(box, {&box, rank, kRanks, now_ns() + kLimitNs, [] { return false; }});
      });
    for (std::thread& thread : threads) thread.join();
  }
};

TEST(Agreement, ManyTellAFewEachWhereSignalsAreMessages) {
  Post().run([](Post::Box& box, const Startup& startup) {
    uint32_t tick = 5;
    EXPECT_TRUE(agree_to_begin(startup, *config(), success(), &tick).ok());
    EXPECT_EQ(tick, 6u);
    EXPECT_EQ(box.sent, 4);
  });
}

TEST(Agreement, ManyTellAllWhatDiffers) {
  Post().run([](Post::Box&, const Startup& startup) {
    uint32_t tick = 5;
    Config settings = *config();
    if (startup.rank == 7) settings.eager_bytes = 64;
    const Status status = agree_to_begin(startup, settings, success(), &tick);
    EXPECT_EQ(tick, 7u);
    EXPECT_EQ(status.code(), FSCCL_ERR_MISMATCH);
    EXPECT_THAT(status.text(), HasSubstr("rank 7 has"));
    EXPECT_THAT(status.text(), HasSubstr("FSCCL_EAGER_BYTES"));
  });
}

TEST(Agreement, OneOfManyThatCannotBeginEndsAll) {
  Post().run([](Post::Box&, const Startup& startup) {
    uint32_t tick = 5;
    const Status status =
        agree_to_begin(startup, *config(),
                       startup.rank == 3 ? fail(FSCCL_ERR_LIMIT, "no room") : success(), &tick);
    EXPECT_EQ(status.code(), startup.rank == 3 ? FSCCL_ERR_LIMIT : FSCCL_ERR_OUT_OF_MEMORY);
  });
}

}  // namespace
}  // namespace fsccl
