// Tests fsccl_comm_shrink() between ranks in one process: after an abort, after a rank has left,
// and with a rank that is late.
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "collective_case.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

// Checks a communicator that was made by shrinking: its ranks, as the parent numbers them, and that
// collectives, a pool and a unit work on it.
void check_survivors(fsccl_comm_t comm, int parent_rank, const std::vector<int>& expected) {
  int rank = -1, size = 0;
  ASSERT_OK(fsccl_comm_rank(comm, &rank));
  ASSERT_OK(fsccl_comm_size(comm, &size));
  ASSERT_EQ(static_cast<size_t>(size), expected.size());
  EXPECT_EQ(expected[static_cast<size_t>(rank)], parent_rank);
  std::vector<int> ranks(expected.size());
  ASSERT_OK(fsccl_all_gather(&parent_rank, ranks.data(), 1, FSCCL_INT32, comm, nullptr, nullptr));
  EXPECT_EQ(ranks, expected);
  const PoolScope pool(comm);
  const Rank self{rank, size, comm};
  Random random(7);
  for (int i = 0; i < 6; i++) run_collective(random_case(random, size, 20'000), self, pool.get());
  TestUnit unit(simple_unit({{100, 3}}), comm, pool.get());
  unit.write_shards(1);
  unit.unshard();
  unit.check_params(1);
  unit.write_grads(1, rank);
  unit.reshard();
  unit.reduce(nullptr);
  unit.check_sharded_grads({{1}});
}

// Calls barriers until one fails because a rank has left. A slow rank may see its first barrier
// fail, because the others have already reported the rank that left.
void meet_until_bereft(fsccl_comm_t comm) {
  fsccl_status_t status = FSCCL_OK;
  while (status >= 0) status = fsccl_barrier(comm, nullptr, nullptr);
  ASSERT_EQ(status, FSCCL_ERR_PEER_DEAD) << explain(status);
}

std::vector<int> all_but(int ranks, int gone) {
  std::vector<int> left;
  for (int rank = 0; rank < ranks; rank++)
    if (rank != gone) left.push_back(rank);
  return left;
}

TEST(Shrink, AfterAnAbortAllAreLeft) {
  run_ranks(3, [](Rank& self) {
    for (int round = 0; round < 3 && !HasFailure(); round++) {
      fsccl_comm_t child = nullptr, shrunk = nullptr;
      ASSERT_OK(fsccl_comm_split(self.comm, 0, 0, nullptr, &child));
      EXPECT_ERROR(fsccl_comm_shrink(child, nullptr, &shrunk), FSCCL_ERR_INVALID_STATE,
                   "has not failed", "fsccl_comm_subset");
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      if (self.rank == round) {
        EXPECT_OK(fsccl_comm_abort(child));
      } else {
        EXPECT_ERROR(fsccl_barrier(child, nullptr, nullptr), FSCCL_ERR_ABORTED, "aborted");
      }
      ASSERT_OK(fsccl_comm_shrink(child, nullptr, &shrunk));
      check_survivors(shrunk, self.rank, {0, 1, 2});
      fsccl_comm_t again = nullptr;  // a communicator can be shrunk twice, and so can its child
      ASSERT_OK(fsccl_comm_shrink(child, nullptr, &again));
      check_survivors(again, self.rank, {0, 1, 2});
      EXPECT_OK(fsccl_comm_destroy(again));
      EXPECT_OK(fsccl_comm_abort(shrunk));
      ASSERT_OK(fsccl_comm_shrink(shrunk, nullptr, &again));
      check_survivors(again, self.rank, {0, 1, 2});
      for (const fsccl_comm_t comm : {again, shrunk, child}) EXPECT_OK(fsccl_comm_destroy(comm));
    }
  });
}

// A rank leaves by destroying the only communicator that it had in the job, or one of two.
TEST(Shrink, WhoHasLeftIsLeftOut) {
  for (const bool part : {false, true})
    for (const int leaver : {0, 2})
      run_ranks(4, [&](Rank& self) {
        fsccl_comm_t comm = self.comm, shrunk = nullptr;
        if (part) {
          ASSERT_OK(fsccl_comm_split(self.comm, 0, 0, nullptr, &comm));
        }
        if (self.rank == leaver) {
          ASSERT_OK(fsccl_barrier(comm, nullptr, nullptr));
          ASSERT_OK(fsccl_comm_destroy(comm));
        } else {
          meet_until_bereft(comm);
          ASSERT_OK(fsccl_comm_shrink(comm, nullptr, &shrunk));
          check_survivors(shrunk, self.rank, all_but(4, leaver));
          EXPECT_OK(fsccl_comm_destroy(comm));
          EXPECT_OK(fsccl_comm_destroy(shrunk));
        }
        if (!part) self.comm = nullptr;
      });
}

// Shrinks with a short deadline, again and again, until the error says that rank `late` alone is
// missing: at first others may be late as well.
void shrink_until_one_is_late(fsccl_comm_t comm, int late) {
  fsccl_comm_config_t hasty = FSCCL_COMM_CONFIG_INIT;
  hasty.timeout_ms = 100;
  fsccl_comm_t shrunk = nullptr;
  const std::string alone = fmt::format("rank(s) {} of", late);
  fsccl_status_t status = FSCCL_ERR_TIMEOUT;
  do status = fsccl_comm_shrink(comm, &hasty, &shrunk);
  while (status == FSCCL_ERR_TIMEOUT && !std::strstr(last_error().text, alone.c_str()));
  EXPECT_ERROR(status, FSCCL_ERR_TIMEOUT, alone.c_str(), "fsccl_comm_shrink()");
  EXPECT_EQ(last_error().peer, late);
  EXPECT_EQ(shrunk, nullptr);
}

// A living rank is not left out because it is late. Ranks that gave up waiting for it can call
// again.
TEST(Shrink, WhoIsLateIsWaitedFor) {
  std::atomic<int> gave_up{0};
  run_ranks(3, [&](Rank& self) {
    fsccl_comm_t child = nullptr, shrunk = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 0, 0, nullptr, &child));
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));  // all ranks have the child
    EXPECT_OK(fsccl_comm_abort(child));
    if (self.rank != 1) {
      shrink_until_one_is_late(child, 1);
      gave_up++;
    }
    while (gave_up.load() < 2) std::this_thread::yield();
    ASSERT_OK(fsccl_comm_shrink(child, nullptr, &shrunk));
    check_survivors(shrunk, self.rank, {0, 1, 2});
    EXPECT_OK(fsccl_comm_destroy(shrunk));
    EXPECT_OK(fsccl_comm_destroy(child));
  });
}

// A rank destroys its part of the split and stays in the job. The others, which had waited for it,
// then go on without it.
TEST(Shrink, WhoGivesUpAPartIsNotWaitedFor) {
  run_ranks(4, [](Rank& self) {
    fsccl_comm_t part = nullptr, shrunk = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 0, 0, nullptr, &part));
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));  // all ranks have the part
    EXPECT_OK(fsccl_comm_abort(part));
    if (self.rank != 2) shrink_until_one_is_late(part, 2);
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));  // all others have asked
    if (self.rank != 2) {
      ASSERT_OK(fsccl_comm_shrink(part, nullptr, &shrunk));
      check_survivors(shrunk, self.rank, all_but(4, 2));
      EXPECT_OK(fsccl_comm_destroy(shrunk));
    }
    EXPECT_OK(fsccl_comm_destroy(part));
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));  // the job is as before
  });
}

TEST(Shrink, OfManyRanksThatLeaveOneByOne) {
  constexpr int kRanks = 12;
  run_ranks(kRanks, [](Rank& self) {
    fsccl_comm_t comm = self.comm, shrunk = nullptr;
    self.comm = nullptr;
    for (int leaver = 0; leaver < kRanks - 1; leaver += 3) {
      if (self.rank == leaver) {
        ASSERT_OK(fsccl_barrier(comm, nullptr, nullptr));
        break;
      }
      meet_until_bereft(comm);
      ASSERT_OK(fsccl_comm_shrink(comm, nullptr, &shrunk));
      EXPECT_OK(fsccl_comm_destroy(comm));
      comm = shrunk;
      std::vector<int> left(kRanks), ranks(kRanks);
      std::iota(left.begin(), left.end(), 0);
      std::erase_if(left, [&](int rank) { return rank <= leaver && rank % 3 == 0; });
      ranks.resize(left.size());
      ASSERT_OK(fsccl_all_gather(&self.rank, ranks.data(), 1, FSCCL_INT32, comm, nullptr, nullptr));
      EXPECT_EQ(ranks, left);
    }
    EXPECT_OK(fsccl_comm_destroy(comm));
  });
}

}  // namespace
}  // namespace fsccl::testing
