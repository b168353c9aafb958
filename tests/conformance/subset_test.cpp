// Tests communicators of some ranks of another, made by those ranks alone.
#include <thread>

#include "collective_case.h"

namespace fsccl::testing {
namespace {

using Ranks = std::vector<int>;

fsccl_status_t subset(fsccl_comm_t comm, const Ranks& ranks, uint64_t tag, fsccl_comm_t* result,
                      int64_t timeout_ms = 0) {
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  config.timeout_ms = timeout_ms;
  return fsccl_comm_subset(comm, ranks.data(), ranks.size(), tag, &config, result);
}

// Expects that `comm` has these ranks of the parent, in this order.
void expect_members(fsccl_comm_t comm, int parent_rank, const Ranks& ranks) {
  Ranks found(ranks.size(), -1);
  ASSERT_EQ(rank_in(comm).ranks, static_cast<int>(ranks.size()));
  ASSERT_OK(fsccl_all_gather(&parent_rank, found.data(), 1, FSCCL_INT32, comm, nullptr, nullptr));
  EXPECT_EQ(found, ranks);
}

void exercise(fsccl_comm_t comm, int cases) {
  const PoolScope pool(comm);
  const Rank self = rank_in(comm);
  Random random(3);
  for (int i = 0; i < cases && !::testing::Test::HasFailure(); ++i)
    run_collective(random_case(random, self.ranks, 50'000), self, pool.get());
}

TEST(Subset, TheListGivesTheOrderAndTheOthersDoNotCall) {
  run_ranks(4, [](Rank& self) {
    if (self.rank == 2) return;
    fsccl_comm_t part = nullptr;
    ASSERT_OK(subset(self.comm, {3, 0, 1}, 1, &part));
    expect_members(part, self.rank, {3, 0, 1});
    exercise(part, 50);
    EXPECT_OK(fsccl_comm_destroy(part));
  });
}

// The ranks make the two dimensions of a mesh. Groups of one dimension have the same tag and are
// made at the same time.
TEST(Subset, RowsAndColumnsOfAMesh) {
  for (const char* single_copy : {"auto", "off"}) {
    const Settings settings{{"FSCCL_SINGLE_COPY", single_copy}};
    run_ranks(6, [](Rank& self) {
      const int row = self.rank / 3, column = self.rank % 3;
      fsccl_comm_t along = nullptr, across = nullptr;
      ASSERT_OK(subset(self.comm, {3 * row, 3 * row + 1, 3 * row + 2}, 1, &along));
      ASSERT_OK(subset(self.comm, {column, column + 3}, 2, &across));
      expect_members(along, self.rank, {3 * row, 3 * row + 1, 3 * row + 2});
      expect_members(across, self.rank, {column, column + 3});
      exercise(along, 20);
      exercise(across, 20);
      exercise(self.comm, 20);
      EXPECT_OK(fsccl_comm_destroy(along));
      EXPECT_OK(fsccl_comm_destroy(across));
    });
  }
}

// Rank 0 makes the communicators of several lists one after the other, while the other ranks come
// at any time.
TEST(Subset, OverlappingListsWithTagsOfTheirOwn) {
  run_ranks(4, [](Rank& self) {
    Random random(static_cast<uint64_t>(self.rank));
    for (uint64_t round = 0; round < 20; ++round) {
      for (int other = 1; other < 4; ++other) {
        if (self.rank != 0 && self.rank != other) continue;
        dawdle(random);
        fsccl_comm_t pair = nullptr;
        ASSERT_OK(subset(self.comm, {0, other}, static_cast<uint64_t>(other), &pair));
        expect_members(pair, self.rank, {0, other});
        EXPECT_OK(fsccl_comm_destroy(pair));
      }
    }
  });
}

TEST(Subset, OneListAndTagAgainWhileTheFirstLives) {
  run_ranks(3, [](Rank& self) {
    if (self.rank == 1) return;
    fsccl_comm_t first = nullptr, second = nullptr;
    ASSERT_OK(subset(self.comm, {0, 2}, 9, &first));
    ASSERT_OK(subset(self.comm, {0, 2}, 9, &second));
    {
      const PoolScope one(first), other(second);
      expect_members(first, self.rank, {0, 2});
      expect_members(second, self.rank, {0, 2});
    }
    EXPECT_OK(fsccl_comm_destroy(first));
    EXPECT_OK(fsccl_comm_destroy(second));
  });
}

TEST(Subset, ThreadsOfARankAndOperationsInFlight) {
  run_ranks(2, [](Rank& self) {
    float value = 1;
    fsccl_work_t work = nullptr;
    if (self.rank == 0) {
      ASSERT_GE(
          fsccl_all_reduce(&value, &value, 1, FSCCL_FLOAT32, FSCCL_SUM, self.comm, nullptr, &work),
          0);
    }
    std::vector<fsccl_comm_t> made(4);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < made.size(); ++i)
      threads.emplace_back([&, i] { EXPECT_OK(subset(self.comm, {0, 1}, i, &made[i])); });
    for (std::thread& thread : threads) thread.join();
    if (self.rank == 1) {
      ASSERT_OK(fsccl_all_reduce(&value, &value, 1, FSCCL_FLOAT32, FSCCL_SUM, self.comm, nullptr,
                                 nullptr));
    } else {
      ASSERT_OK(fsccl_work_wait(work, -1));
    }
    EXPECT_EQ(value, 2);
    for (fsccl_comm_t comm : made) {
      expect_members(comm, self.rank, {0, 1});
      EXPECT_OK(fsccl_comm_destroy(comm));
    }
  });
}

TEST(Subset, OfASubsetAndTheParentsDestroyedFirst) {
  run_ranks(4, [](Rank& self) {
    fsccl_comm_t part = nullptr, pair = nullptr, alone = nullptr;
    if (self.rank != 1) {
      ASSERT_OK(subset(self.comm, {3, 2, 0}, 1, &part));
      if (self.rank != 0) {
        ASSERT_OK(subset(part, {1, 0}, 1, &pair));
      }
    }
    ASSERT_OK(subset(self.comm, {self.rank}, 1, &alone));
    EXPECT_OK(fsccl_comm_destroy(self.comm));
    self.comm = nullptr;
    expect_members(alone, self.rank, {self.rank});
    EXPECT_OK(fsccl_comm_destroy(alone));
    if (!part) return;
    EXPECT_OK(fsccl_comm_destroy(part));
    if (!pair) return;
    expect_members(pair, self.rank, {2, 3});
    exercise(pair, 30);
    EXPECT_OK(fsccl_comm_destroy(pair));
  });
}

TEST(Subset, ListsThatNoCallCanMean) {
  run_ranks(2, [](Rank& self) {
    const auto untouched = reinterpret_cast<fsccl_comm_t>(1);
    fsccl_comm_t part = untouched;
    const int mine = self.rank, other = 1 - self.rank;
    EXPECT_ERROR(subset(self.comm, {other}, 1, &part), FSCCL_ERR_INVALID_ARGUMENT, "not in ranks");
    EXPECT_ERROR(subset(self.comm, {mine, 2}, 1, &part), FSCCL_ERR_INVALID_ARGUMENT,
                 "ranks[1] is 2", "0 .. 1");
    EXPECT_ERROR(subset(self.comm, {-1, mine}, 1, &part), FSCCL_ERR_INVALID_ARGUMENT,
                 "ranks[0] is -1");
    EXPECT_ERROR(subset(self.comm, {mine, mine}, 1, &part), FSCCL_ERR_INVALID_ARGUMENT, "ranks[1]",
                 "before");
    EXPECT_ERROR(subset(self.comm, {mine, other, mine}, 1, &part), FSCCL_ERR_INVALID_ARGUMENT,
                 "count is 3");
    EXPECT_ERROR(subset(self.comm, {}, 1, &part), FSCCL_ERR_INVALID_ARGUMENT, "NULL");
    EXPECT_ERROR(fsccl_comm_subset(self.comm, &mine, 0, 1, nullptr, &part),
                 FSCCL_ERR_INVALID_ARGUMENT, "count is 0");
    EXPECT_ERROR(fsccl_comm_subset(self.comm, &mine, 1, 1, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "result");
    EXPECT_ERROR(fsccl_comm_subset(nullptr, &mine, 1, 1, nullptr, &part), FSCCL_ERR_INVALID_HANDLE,
                 "NULL");
    EXPECT_ERROR(subset(self.comm, {mine}, 1, &part, -1), FSCCL_ERR_INVALID_ARGUMENT, "timeout_ms");
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.nonblocking = 1;
    EXPECT_ERROR(fsccl_comm_subset(self.comm, &mine, 1, 1, &config, &part), FSCCL_ERR_NOT_AVAILABLE,
                 "nonblocking");
    EXPECT_EQ(part, untouched);
    ASSERT_OK(subset(self.comm, {0, 1}, 1, &part));
    expect_members(part, self.rank, {0, 1});
    EXPECT_OK(fsccl_comm_destroy(part));
  });
}

// A rank whose list differs from the first rank's learns it at once, and the first rank learns it
// at its deadline.
TEST(Subset, ListsThatDisagree) {
  for (const Ranks& others : {Ranks{0, 2}, Ranks{0, 1, 2}, Ranks{0, 2, 1}}) {
    run_ranks(3, [&](Rank& self) {
      fsccl_comm_t part = nullptr;
      if (self.rank == 0) {
        EXPECT_ERROR(subset(self.comm, {0, 1}, 1, &part, 1000), FSCCL_ERR_TIMEOUT, "rank 1",
                     "[0, 1]", "tag 0x1");
      } else if (self.rank == 2) {
        EXPECT_ERROR(subset(self.comm, others, 1, &part), FSCCL_ERR_MISMATCH, "other ranks",
                     "with ranks [0, ", "tag 0x1");
      }
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));  // the parent is as before
      ASSERT_OK(subset(self.comm, {0, 1, 2}, 2, &part));
      expect_members(part, self.rank, {0, 1, 2});
      EXPECT_OK(fsccl_comm_destroy(part));
    });
  }
}

// Errors name ranks by their numbers in the parent communicator, which the list uses.
TEST(Subset, WhoDoesNotComeIsNamedAsTheCallerKnowsHim) {
  for (const int absent : {2, 3}) {
    run_ranks(4, [&](Rank& self) {
      fsccl_comm_t part = nullptr;
      if (self.rank >= 2 && self.rank != absent) {
        const std::string late = "rank " + std::to_string(absent) + " did not come in time";
        EXPECT_ERROR(subset(self.comm, {2, 3}, 1, &part, 300), FSCCL_ERR_TIMEOUT, late.c_str());
        fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
        EXPECT_OK(fsccl_last_error(&info));
        EXPECT_EQ(info.peer, absent);
      }
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    });
  }
}

TEST(Subset, AMemberDoesNotCome) {
  for (const int absent : {0, 1, 2}) {
    run_ranks(3, [&](Rank& self) {
      fsccl_comm_t part = nullptr;
      if (self.rank != absent) {
        EXPECT_ERROR(subset(self.comm, {0, 1, 2}, 1, &part, 300), FSCCL_ERR_TIMEOUT, "in time",
                     "[0, 1, 2]", "tag 0x1");
        EXPECT_EQ(part, nullptr);
      }
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      ASSERT_OK(subset(self.comm, {0, 1, 2}, 2, &part));
      expect_members(part, self.rank, {0, 1, 2});
      EXPECT_OK(fsccl_comm_destroy(part));
    });
  }
}

// An abort of the parent ends the calls in which ranks wait: the first rank of a list waits for the
// others, and another rank waits for the first one.
TEST(Subset, AbortOfTheParent) {
  run_ranks(3, [](Rank& self) {
    fsccl_comm_t part = nullptr;
    if (self.rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_OK(fsccl_comm_abort(self.comm));
    }
    const Ranks ranks = self.rank == 0 ? Ranks{0, 1} : Ranks{2, 1};
    EXPECT_ERROR(subset(self.comm, ranks, 1, &part), FSCCL_ERR_ABORTED, "aborted by rank 2");
  });
}

}  // namespace
}  // namespace fsccl::testing
