// Tests works: operations in flight, and how they complete when the caller waits, tests, lets other
// threads do so, or does nothing.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "collective_case.h"
#include "fsccl/insight.h"

namespace fsccl::testing {
namespace {

// Waits for the operations without a wait or a test of their works, so the library's own thread
// must run them. A query of something else does not.
void wait_for_operations(fsccl_comm_t comm, uint64_t operations) {
  for (;;) {
    fsccl_counters_t counters = FSCCL_COUNTERS_INIT;
    ASSERT_OK(fsccl_comm_counters(comm, &counters));
    if (counters.operations >= operations) return;
    std::this_thread::yield();
  }
}

class Async : public ::testing::TestWithParam<int> {};

TEST_P(Async, ManyInFlightThenWaitInAnyOrder) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    Random random(11), own(static_cast<uint64_t>(self.rank));
    for (int round = 0; round < 12 && !HasFailure(); ++round) {
      std::vector<std::unique_ptr<Collective>> collectives;
      // The works are more than the 64 that the library holds.
      std::vector<fsccl_work_t> works(1 + random.below(100));
      for (fsccl_work_t& work : works) {
        collectives.push_back(std::make_unique<Collective>(random_case(random, self.ranks, 20'000),
                                                           self, pool.get()));
        const fsccl_status_t status = collectives.back()->start(&work);
        ASSERT_TRUE(status == FSCCL_OK || status == FSCCL_IN_PROGRESS) << explain(status);
        dawdle(own);
      }
      for (size_t i = 0; i < works.size(); ++i) {
        const size_t which = round % 2 ? i : works.size() - 1 - i;
        EXPECT_OK(fsccl_work_wait(works[which], -1));
        EXPECT_OK(fsccl_work_error(works[which]));
        EXPECT_OK(fsccl_work_test(works[which]));
        collectives[which]->check();
      }
      for (const fsccl_work_t work : works) EXPECT_OK(fsccl_work_release(work));
    }
  });
}

TEST_P(Async, CompletesThoughNobodyWaits) {
  for (const char* single_copy : {"auto", "off"}) {
    const Settings settings{{"FSCCL_SINGLE_COPY", single_copy}, {"FSCCL_SLOT_BYTES", "4K"}};
    run_ranks(GetParam(), [](Rank& self) {
      const PoolScope pool(self.comm);
      Random random(5), own(static_cast<uint64_t>(self.rank));
      for (int round = 0; round < 40 && !HasFailure(); ++round) {
        fsccl_counters_t before = FSCCL_COUNTERS_INIT;
        ASSERT_OK(fsccl_comm_counters(self.comm, &before));
        std::vector<std::unique_ptr<Collective>> collectives;
        const uint64_t operations = 1 + random.below(4);
        for (uint64_t i = 0; i < operations; ++i) {
          collectives.push_back(std::make_unique<Collective>(
              random_case(random, self.ranks, 50'000), self, pool.get()));
          fsccl_work_t work = nullptr;
          dawdle(own);
          ASSERT_GE(collectives.back()->start(&work), 0);
        }
        wait_for_operations(self.comm, before.operations + operations);
        // The counters say that the bytes are there, but not that this thread sees them.
        ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
        for (const auto& collective : collectives) collective->check();
      }
    });
  }
}

TEST_P(Async, PollingAlone) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    Random random(17);
    for (int i = 0; i < 150 && !HasFailure(); ++i) {
      Collective collective(random_case(random, self.ranks, 30'000), self, pool.get());
      fsccl_work_t work = nullptr;
      fsccl_status_t status = collective.start(&work);
      while (status == FSCCL_IN_PROGRESS) {
        status = fsccl_work_test(work);
        std::this_thread::yield();
      }
      ASSERT_OK(status);
      collective.check();
    }
  });
}

// Several threads wait for the works that one thread submits, and test them.
TEST_P(Async, OtherThreadsWaitAndTest) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    Random random(23), own(static_cast<uint64_t>(self.rank) + 100);
    std::array<std::atomic<fsccl_work_t>, 3> newest{};
    std::atomic<bool> over{false};
    std::vector<std::thread> helpers;
    for (size_t h = 0; h < newest.size(); ++h)
      helpers.emplace_back([&, h] {
        fsccl_work_t last = nullptr;
        while (!over.load()) {
          const fsccl_work_t work = newest[h].load();
          if (!work || work == last) {
            std::this_thread::yield();
            continue;
          }
          last = work;
          if (h == 0) {
            EXPECT_OK(fsccl_work_wait(work, -1));
          } else if (h == 1) {
            EXPECT_GE(fsccl_work_wait(work, 1), 0) << explain(FSCCL_OK);
          } else {
            EXPECT_GE(fsccl_work_test(work), 0) << explain(FSCCL_OK);
          }
          fsccl_status_t state = FSCCL_OK;
          EXPECT_OK(fsccl_comm_async_error(self.comm, &state));
          EXPECT_OK(state);
        }
      });
    for (int i = 0; i < 300 && !HasFailure(); ++i) {
      Collective collective(random_case(random, self.ranks, 20'000), self, pool.get());
      fsccl_work_t work = nullptr;
      EXPECT_GE(collective.start(&work), 0);
      for (auto& one : newest) one.store(work);
      dawdle(own);
      EXPECT_OK(fsccl_work_wait(work, -1));
      collective.check();
    }
    over.store(true);
    for (std::thread& helper : helpers) helper.join();
  });
}

INSTANTIATE_TEST_SUITE_P(Shm, Async, ::testing::Values(1, 2, 4),
                         ::testing::PrintToStringParamName());

TEST(Works, ShortWaitReturnsInProgress) {
  run_ranks(2, [](Rank& self) {
    static std::atomic<bool> go;
    if (self.rank == 0) go = false;
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    if (self.rank == 1) {
      while (!go.load()) std::this_thread::yield();
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      return;
    }
    fsccl_work_t work = nullptr;
    EXPECT_EQ(fsccl_barrier(self.comm, nullptr, &work), FSCCL_IN_PROGRESS);
    EXPECT_EQ(fsccl_work_test(work), FSCCL_IN_PROGRESS);
    EXPECT_EQ(fsccl_work_wait(work, 0), FSCCL_IN_PROGRESS);
    EXPECT_EQ(fsccl_work_wait(work, 5), FSCCL_IN_PROGRESS);
    EXPECT_OK(fsccl_work_error(work));
    EXPECT_ERROR(fsccl_comm_destroy(self.comm), FSCCL_ERR_INVALID_STATE, "in flight",
                 "wait for them");
    go = true;
    EXPECT_OK(fsccl_work_wait(work, -1));
    EXPECT_OK(fsccl_work_test(work));
  });
}

// A work names its operation for as long as its communicator lives, and nothing afterwards.
TEST(Works, StayValidUntilTheirCommunicatorIsDestroyed) {
  fsccl_work_t first = nullptr, last = nullptr;
  run_ranks(1, [&](Rank& self) {
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, &first));
    for (int i = 0; i < 1000; ++i) ASSERT_OK(fsccl_barrier(self.comm, nullptr, &last));
    EXPECT_OK(fsccl_work_wait(first, -1));
    EXPECT_OK(fsccl_work_release(first));
    EXPECT_OK(fsccl_work_test(first));
  });
  for (const fsccl_work_t work : {first, last}) {
    EXPECT_ERROR(fsccl_work_test(work), FSCCL_ERR_INVALID_HANDLE, "destroyed");
    EXPECT_ERROR(fsccl_work_wait(work, -1), FSCCL_ERR_INVALID_HANDLE, "destroyed");
    EXPECT_ERROR(fsccl_work_error(work), FSCCL_ERR_INVALID_HANDLE, "destroyed");
  }
}

}  // namespace
}  // namespace fsccl::testing
