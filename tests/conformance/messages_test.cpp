// Tests messages between two ranks: every size and kind of memory, in order, in rings, in groups
// and in flight; calls that are refused; and messages whose peer is gone.
#include <unistd.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "fsccl/insight.h"
#include "reference.h"
#include "support.h"

namespace fsccl::testing {
namespace {

// Returns the bytes of message `number` from one rank to another.
std::vector<char> letter(int from, int to, uint64_t number, size_t bytes) {
  std::vector<char> text(bytes);
  fill_values(FSCCL_UINT8, text.data(), bytes,
              mix(mix(static_cast<uint64_t>(from), static_cast<uint64_t>(to)), number), false);
  return text;
}

// A buffer in the pool, or in the test's own memory if `pool` is null.
class Buffer {
 public:
  Buffer(fsccl_pool_t pool, size_t bytes) : pool_(pool), own_(pool ? 0 : bytes + 1) {
    if (!pool_) return;
    EXPECT_OK(fsccl_pool_alloc(pool_, bytes + 1, nullptr, &block_));
  }
  ~Buffer() {
    if (!pool_) return;
    EXPECT_OK(fsccl_pool_free(pool_, block_, nullptr));
  }
  Buffer(const Buffer&) = delete;
  char* data() { return pool_ ? static_cast<char*>(block_) : own_.data(); }

 private:
  fsccl_pool_t pool_;
  void* block_ = nullptr;
  std::vector<char> own_;
};

fsccl_status_t send(const Rank& self, const char* data, size_t bytes, int to, int tag = 0,
                    fsccl_work_t* work = nullptr) {
  return fsccl_send(data, bytes, FSCCL_UINT8, to, tag, self.comm, nullptr, work);
}
fsccl_status_t receive(const Rank& self, char* data, size_t bytes, int from, int tag = 0,
                       fsccl_work_t* work = nullptr) {
  return fsccl_recv(data, bytes, FSCCL_UINT8, from, tag, self.comm, nullptr, work);
}

constexpr size_t kSizes[] = {0, 1, 8, 24, 25, 1000, 4096, 4097, 70'000, 300'000};

struct MessageWay {
  const char* name;
  const char* single_copy;
  bool pooled;
};
void PrintTo(const MessageWay& way, std::ostream* out) { *out << way.name; }

class Messages : public ::testing::TestWithParam<MessageWay> {};

// Each rank sends messages of every size to each other rank, beginning with the next rank, and
// meanwhile receives the same sizes.
TEST_P(Messages, AllPairsAllSizes) {
  const Settings settings{{"FSCCL_SINGLE_COPY", GetParam().single_copy}};
  run_ranks(4, [](Rank& self) {
    const PoolScope pool(self.comm);
    const fsccl_pool_t memory = GetParam().pooled ? pool.get() : nullptr;
    for (uint64_t number = 0; number < 3 * std::size(kSizes); number++)
      for (int step = 1; step < self.ranks; step++) {
        const size_t bytes = kSizes[number % std::size(kSizes)];
        const int to = (self.rank + step) % self.ranks,
                  from = (self.rank + self.ranks - step) % self.ranks;
        Buffer out(memory, bytes), in(memory, bytes);
        std::ranges::copy(letter(self.rank, to, number, bytes), out.data());
        in.data()[bytes] = 77;
        ASSERT_OK(fsccl_group_start());
        ASSERT_OK(send(self, out.data(), bytes, to));
        ASSERT_OK(receive(self, in.data(), bytes, from));
        ASSERT_OK(fsccl_group_end());
        const std::vector<char> wanted = letter(from, self.rank, number, bytes);
        ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), in.data()))
            << bytes << " bytes from " << from << " to " << self.rank;
        ASSERT_EQ(in.data()[bytes], 77);
      }
  });
}

// The ranks form a pipeline: rank r receives from r - 1, then sends to r + 1. No call is in a
// group. The last rank's collective meets the others'.
TEST_P(Messages, ManyInOneDirectionKeepTheirOrder) {
  const Settings settings{{"FSCCL_SINGLE_COPY", GetParam().single_copy}};
  run_ranks(3, [](Rank& self) {
    const PoolScope pool(self.comm);
    const fsccl_pool_t memory = GetParam().pooled ? pool.get() : nullptr;
    Random random(3), own(static_cast<uint64_t>(self.rank));
    for (uint64_t number = 0; number < 300; number++) {
      const size_t bytes = random.below(random.below(4) ? 100 : 9000);
      Buffer buffer(memory, bytes);
      std::ranges::copy(letter(0, 1, number, bytes), buffer.data());
      if (self.rank > 0) {
        std::fill_n(buffer.data(), bytes, 0);
        ASSERT_OK(receive(self, buffer.data(), bytes, self.rank - 1, static_cast<int>(number)));
        ASSERT_TRUE(
            std::ranges::equal(letter(0, 1, number, bytes), std::span(buffer.data(), bytes)))
            << number;
      }
      dawdle(own);
      if (self.rank + 1 < self.ranks) {
        ASSERT_OK(send(self, buffer.data(), bytes, self.rank + 1, static_cast<int>(number)));
      }
      if (number % 50 == 49) {
        ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      }
    }
  });
}

TEST_P(Messages, InFlightBesideCollectives) {
  const Settings settings{{"FSCCL_SINGLE_COPY", GetParam().single_copy}};
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    const fsccl_pool_t memory = GetParam().pooled ? pool.get() : nullptr;
    const int peer = 1 - self.rank;
    constexpr size_t kBytes = 20'000;
    for (uint64_t round = 0; round < 20; round++) {
      Buffer out(memory, kBytes), in(memory, kBytes);
      std::ranges::copy(letter(self.rank, peer, round, kBytes), out.data());
      std::vector<float> sum{1, 2, 3};
      fsccl_work_t sent = nullptr, received = nullptr, reduced = nullptr;
      ASSERT_GE(receive(self, in.data(), kBytes, peer, 0, &received), 0);
      ASSERT_GE(fsccl_all_reduce(sum.data(), sum.data(), sum.size(), FSCCL_FLOAT32, FSCCL_SUM,
                                 self.comm, nullptr, &reduced),
                0);
      ASSERT_GE(send(self, out.data(), kBytes, peer, 0, &sent), 0);
      for (const fsccl_work_t work : {reduced, received, sent}) {
        ASSERT_OK(fsccl_work_wait(work, -1));
        ASSERT_OK(fsccl_work_release(work));
      }
      EXPECT_THAT(sum, ::testing::ElementsAre(2, 4, 6));
      ASSERT_TRUE(
          std::ranges::equal(letter(peer, self.rank, round, kBytes), std::span(in.data(), kBytes)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shm, Messages,
                         ::testing::Values(MessageWay{"caller", "auto", false},
                                           MessageWay{"pool", "auto", true},
                                           MessageWay{"callerTwoCopies", "off", false}),
                         ::testing::PrintToStringParamName());

TEST(Message, WrongArguments) {
  run_ranks(2, [](Rank& self) {
    char data[8] = "";
    EXPECT_ERROR(send(self, data, 8, 2), FSCCL_ERR_INVALID_ARGUMENT, "peer 2", "0 .. 1");
    EXPECT_ERROR(receive(self, data, 8, -1), FSCCL_ERR_INVALID_ARGUMENT, "peer -1");
    EXPECT_ERROR(send(self, data, 8, self.rank), FSCCL_ERR_INVALID_ARGUMENT, "not another rank");
    EXPECT_ERROR(send(self, nullptr, 8, 1 - self.rank), FSCCL_ERR_INVALID_ARGUMENT, "NULL");
    EXPECT_ERROR(
        fsccl_send(data, 8, wild<fsccl_dtype_t>(99), 1 - self.rank, 0, self.comm, nullptr, nullptr),
        FSCCL_ERR_INVALID_ARGUMENT, "dtype");
    EXPECT_ERROR(
        fsccl_send(data, SIZE_MAX, FSCCL_FLOAT32, 1 - self.rank, 0, self.comm, nullptr, nullptr),
        FSCCL_ERR_INVALID_ARGUMENT, "count");
    EXPECT_ERROR(fsccl_recv(data, 8, FSCCL_UINT8, 1 - self.rank, 0, self.comm, data, nullptr),
                 FSCCL_ERR_NOT_AVAILABLE, "stream");
    EXPECT_ERROR(fsccl_send(data, 8, FSCCL_UINT8, 1 - self.rank, 0, nullptr, nullptr, nullptr),
                 FSCCL_ERR_INVALID_HANDLE);
    // No message is lost.
    ASSERT_OK(self.rank == 0 ? send(self, data, 8, 1) : receive(self, data, 8, 0));
  });
}

TEST(Message, ThatDoesNotMatchIsNamedOnBothSides) {
  struct Difference {
    size_t count;
    fsccl_dtype_t dtype;
    int tag;
    const char *here, *there;
  };
  constexpr Difference kDifferences[] = {{16, FSCCL_UINT8, 5, "8 uint8", "16 uint8"},
                                         {8, FSCCL_INT8, 5, "uint8", "int8"},
                                         {8, FSCCL_UINT8, 6, "tag 5", "tag 6"},
                                         {300'000, FSCCL_UINT8, 5, "8 uint8", "300000 uint8"}};
  for (const Difference& other : kDifferences)
    run_ranks(2,
              [&](Rank& self) {
                std::vector<char> data(300'000);
                for (int i = 0; i < 3; i++)  // messages that match
                  ASSERT_OK(self.rank == 0 ? send(self, data.data(), 8, 1, 5)
                                           : fsccl_recv(data.data(), 8, FSCCL_UINT8, 0, 5,
                                                        self.comm, nullptr, nullptr));
                fsccl_status_t status = FSCCL_OK;
                // The sender of a small message learns of the mismatch at a later message at the
                // latest.
                for (int i = 0; i < 100 && status == FSCCL_OK; i++)
                  status = self.rank == 0 ? send(self, data.data(), 8, 1, 5)
                                          : fsccl_recv(data.data(), other.count, other.dtype, 0,
                                                       other.tag, self.comm, nullptr, nullptr);
                EXPECT_ERROR(status, FSCCL_ERR_MISMATCH, other.here, other.there, "tag 5");
                EXPECT_ERROR(fsccl_barrier(self.comm, nullptr, nullptr), FSCCL_ERR_MISMATCH);
              },
              {.abort_at_end = true});
}

TEST(Message, IsThereOrNotBeforeItIsReceived) {
  run_ranks(3, [](Rank& self) {
    if (self.rank > 0) {
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      for (const size_t bytes : {size_t{8}, size_t{300'000}})
        ASSERT_OK(send(self, letter(self.rank, 0, bytes, bytes).data(), bytes, 0));
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      return;
    }
    EXPECT_EQ(fsccl_probe(0, self.comm), FSCCL_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(fsccl_probe(3, self.comm), FSCCL_ERR_INVALID_ARGUMENT);
    for (const int peer : {1, 2}) ASSERT_EQ(fsccl_probe(peer, self.comm), FSCCL_IN_PROGRESS);
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    for (const size_t bytes : {size_t{8}, size_t{300'000}})
      for (const int peer : {2, 1}) {
        fsccl_status_t there;
        while ((there = fsccl_probe(peer, self.comm)) == FSCCL_IN_PROGRESS) usleep(100);
        ASSERT_OK(there);
        std::vector<char> text(bytes);
        ASSERT_OK(receive(self, text.data(), bytes, peer));
        ASSERT_EQ(text, letter(peer, 0, bytes, bytes));
      }
    for (const int peer : {1, 2}) ASSERT_EQ(fsccl_probe(peer, self.comm), FSCCL_IN_PROGRESS);
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
  });
}

TEST(Message, InFlightKeepsTheCommunicatorAndAnAbortEndsIt) {
  run_ranks(2,
            [](Rank& self) {
              char data[8] = "";
              ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
              self.meet();
              if (self.rank == 1) {
                EXPECT_ERROR(receive(self, data, 8, 0), FSCCL_ERR_ABORTED);
                return;
              }
              fsccl_work_t work = nullptr;
              EXPECT_EQ(receive(self, data, 8, 1, 0, &work), FSCCL_IN_PROGRESS);
              EXPECT_ERROR(fsccl_comm_destroy(self.comm), FSCCL_ERR_INVALID_STATE,
                           "messages in flight");
              EXPECT_OK(fsccl_comm_abort(self.comm));
              EXPECT_ERROR(fsccl_work_wait(work, -1), FSCCL_ERR_ABORTED);
            },
            {.abort_at_end = true});
}

// An abort ends messages as well, also if nobody waits for them.
TEST(Message, InFlightEndsWithTheAbortedCommunicator) {
  run_ranks(2, [](Rank& self) {
    for (int round = 0; round < 20; round++) {
      fsccl_comm_t part = nullptr;
      ASSERT_OK(fsccl_comm_split(self.comm, 0, self.rank, nullptr, &part));
      char data[8] = "";
      fsccl_work_t work = nullptr;
      EXPECT_EQ(fsccl_recv(data, 8, FSCCL_UINT8, 1 - self.rank, 0, part, nullptr, &work),
                FSCCL_IN_PROGRESS);
      EXPECT_OK(fsccl_comm_abort(part));
      EXPECT_OK(fsccl_comm_destroy(part));
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    }
  });
}

TEST(Message, FromARankThatHasLeft) {
  run_ranks(3,
            [](Rank& self) {
              char data[8] = "";
              if (self.rank == 2) {
                EXPECT_OK(fsccl_comm_destroy(std::exchange(self.comm, nullptr)));
              } else {
                EXPECT_ERROR(receive(self, data, 8, 2), FSCCL_ERR_PEER_DEAD, "rank 2", "left");
              }
            },
            {.abort_at_end = true});
}

// The process of rank 2 lives on, and has never used a pair with the others.
TEST(Message, FromARankThatHasLeftTheCommunicator) {
  run_ranks(3, [](Rank& self) {
    fsccl_comm_t part = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 0, self.rank, nullptr, &part));
    char data[8] = "";
    if (self.rank == 2) {
      EXPECT_OK(fsccl_comm_destroy(std::exchange(part, nullptr)));
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    } else {
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      if (self.rank == 0) {
        fsccl_status_t there;
        while ((there = fsccl_probe(2, part)) == FSCCL_IN_PROGRESS) usleep(100);
        EXPECT_ERROR(there, FSCCL_ERR_PEER_DEAD, "rank 2 has left");
      }
      EXPECT_ERROR(fsccl_recv(data, 8, FSCCL_UINT8, 2, 0, part, nullptr, nullptr),
                   FSCCL_ERR_PEER_DEAD, "rank 2 has left");
    }
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    EXPECT_OK(part ? fsccl_comm_destroy(part) : FSCCL_OK);
  });
}

TEST(Message, LargeOnesAgainstEachOtherAskForAGroup) {
  run_ranks(
      2,
      [](Rank& self) {
        std::vector<char> data(size_t{16} << 20);
        const fsccl_status_t status = fsccl_send(data.data(), data.size(), FSCCL_UINT8,
                                                 1 - self.rank, 0, self.comm, nullptr, nullptr);
        EXPECT_EQ(status, FSCCL_ERR_TIMEOUT);
        fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
        ASSERT_OK(fsccl_last_error(&info));
        EXPECT_NE(std::string(info.text).find("fsccl_group_start"), std::string::npos) << info.text;
      },
      {.timeout_ms = 1000, .abort_at_end = true});
}

TEST(Message, ThatIsNeverSentEndsAtTheDeadline) {
  run_ranks(2,
            [](Rank& self) {
              char data[8] = "";
              if (self.rank == 1) {
                EXPECT_ERROR(receive(self, data, 8, 0), FSCCL_ERR_TIMEOUT, "3000 ms", "rank(s) 0",
                             "recv of 8 uint8");
                fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
                ASSERT_OK(fsccl_last_error(&info));
                EXPECT_NE(std::string(info.operation).find("recv"), std::string::npos)
                    << info.operation;
              } else {
                fsccl_status_t state = FSCCL_OK;
                while (state == FSCCL_OK) ASSERT_OK(fsccl_comm_async_error(self.comm, &state));
                EXPECT_EQ(state, FSCCL_ERR_TIMEOUT);
              }
            },
            {.timeout_ms = 3000, .abort_at_end = true});
}

// Two communicators of the same ranks keep their messages apart, also if one was split off the
// other.
TEST(Message, OnASplit) {
  run_ranks(4, [](Rank& self) {
    fsccl_comm_t half = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, self.rank / 2, self.rank, nullptr, &half));
    const int peer = self.rank ^ 1;
    int64_t mine = self.rank, whole = -1, part = -1;
    ASSERT_OK(fsccl_group_start());
    ASSERT_OK(fsccl_recv(&part, 1, FSCCL_INT64, peer % 2, 1, half, nullptr, nullptr));
    ASSERT_OK(fsccl_recv(&whole, 1, FSCCL_INT64, peer, 2, self.comm, nullptr, nullptr));
    const int64_t twice = 2 * mine;
    ASSERT_OK(fsccl_send(&mine, 1, FSCCL_INT64, peer, 2, self.comm, nullptr, nullptr));
    ASSERT_OK(fsccl_send(&twice, 1, FSCCL_INT64, peer % 2, 1, half, nullptr, nullptr));
    ASSERT_OK(fsccl_group_end());
    EXPECT_EQ(whole, peer);
    EXPECT_EQ(part, 2 * peer);
    ASSERT_OK(fsccl_comm_destroy(half));
  });
}

}  // namespace
}  // namespace fsccl::testing
