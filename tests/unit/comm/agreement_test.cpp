// All ranks hear what one says, and so know whether all can begin.
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

Meeting meeting_of(int rank, Wrapped& wrapped) {
  return {shm_transport(),     wrapped.channel,         rank,    3,
          now_ns() + kLimitNs, [](void*) { return 0; }, nullptr, kNumbers};
}

TEST(Agreement, OneThatCannotBeginEndsAll) {
  over_channel(3, [](int rank, Wrapped& channel, uint32_t tick) {
    const uint32_t first = tick;
    Status mine = rank == 1 ? fail(FSCCL_ERR_LIMIT, "no room here") : success();
    const Status status =
        agree_to_begin(meeting_of(rank, channel), *config(), std::move(mine), &tick);
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
    const Status status = agree_to_begin(meeting_of(rank, channel), settings, success(), &tick);
    EXPECT_EQ(status.code(), FSCCL_ERR_MISMATCH);
    EXPECT_THAT(status.text(),
                HasSubstr(rank == 2 ? "rank 4 has FSCCL_EAGER_BYTES 128, rank 9 has 64"
                                    : "rank 9 has FSCCL_EAGER_BYTES 64, rank"));
  });
}

// The messages that ranks, which are threads here, send each other, and how many each has sent.
struct Post {
  static constexpr int kRanks = 13;
  struct Box {
    Post* post = nullptr;
    int rank = 0, sent = 0;
    uint32_t word = 0;
  };
  std::mutex mutex;
  std::map<std::tuple<int, int, uint32_t>, fsccl_transport_line_t> lines;  // from, to, tick

  static fsccl_transport_ops_t ops() {
    fsccl_transport_ops_t ops{};
    ops.signal_to = [](void* channel, int peer, const fsccl_transport_line_t* line) {
      Box& box = *static_cast<Box*>(channel);
      const std::lock_guard lock(box.post->mutex);
      box.post->lines[{box.rank, peer, line->tick}] = *line;
      box.sent++;
    };
    ops.signal = [](void* channel, const fsccl_transport_line_t* line) {
      for (int peer = 0; peer < kRanks; peer++)
        if (peer != static_cast<Box*>(channel)->rank) Post::ops().signal_to(channel, peer, line);
    };
    ops.poll = [](void* channel, int peer, uint32_t tick) -> const fsccl_transport_line_t* {
      Box& box = *static_cast<Box*>(channel);
      const std::lock_guard lock(box.post->mutex);
      const auto found = box.post->lines.find({peer, box.rank, tick});
      return found == box.post->lines.end() ? nullptr : &found->second;
    };
    ops.word = [](void* channel, int, uint32_t, fsccl_transport_word_t* word) {
      Box& box = *static_cast<Box*>(channel);
      *word = {};
      word->word = word->sleepers = &box.word;  // nobody wakes: it looks again soon
    };
    ops.slots = [](void*, int, size_t* ring_bytes, size_t* slot_bytes) -> void* {
      *ring_bytes = *slot_bytes = 4096;
      return nullptr;
    };
    ops.failure = [](void*) -> const fsccl_transport_failure_t* { return nullptr; };
    return ops;
  }

  // Runs `body` on each rank, from tick 5 on, and counts the messages that each sends.
  void run(const std::function<void(Box& box, const Meeting& meeting)>& body) {
    const fsccl_transport_ops_t table = ops();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; rank++)
      threads.emplace_back([&, rank] {
        Box box{this, rank};
        body(box, {&table, &box, rank, kRanks, now_ns() + kLimitNs, [](void*) { return 0; },
                   nullptr, nullptr});
      });
    for (std::thread& thread : threads) thread.join();
  }
};

TEST(Agreement, ManyTellAFewEachWhereSignalsAreMessages) {
  Post().run([](Post::Box& box, const Meeting& meeting) {
    uint32_t tick = 5;
    EXPECT_TRUE(agree_to_begin(meeting, *config(), success(), &tick).ok());
    EXPECT_EQ(tick, 6u);
    EXPECT_EQ(box.sent, 4);
  });
}

TEST(Agreement, ManyTellAllWhatDiffers) {
  Post().run([](Post::Box& box, const Meeting& meeting) {
    uint32_t tick = 5;
    Config settings = *config();
    if (box.rank == 7) settings.eager_bytes = 64;
    const Status status = agree_to_begin(meeting, settings, success(), &tick);
    EXPECT_EQ(tick, 7u);
    EXPECT_EQ(status.code(), FSCCL_ERR_MISMATCH);
    EXPECT_THAT(status.text(), HasSubstr("rank 7 has"));
    EXPECT_THAT(status.text(), HasSubstr("FSCCL_EAGER_BYTES"));
  });
}

TEST(Agreement, OneOfManyThatCannotBeginEndsAll) {
  Post().run([](Post::Box& box, const Meeting& meeting) {
    uint32_t tick = 5;
    const Status status = agree_to_begin(
        meeting, *config(), box.rank == 3 ? fail(FSCCL_ERR_LIMIT, "no room") : success(), &tick);
    EXPECT_EQ(status.code(), box.rank == 3 ? FSCCL_ERR_LIMIT : FSCCL_ERR_OUT_OF_MEMORY);
  });
}

}  // namespace
}  // namespace fsccl
