// Tests communicators made from others: which ranks are in them, operations on both in turn, and
// pools of one used on the other.
#include <numeric>

#include "collective_case.h"

namespace fsccl::testing {
namespace {

// Returns the members' ranks in the parent, in the order of the child.
std::vector<int> members_of(fsccl_comm_t comm, int parent_rank) {
  int size = 0;
  EXPECT_OK(fsccl_comm_size(comm, &size));
  std::vector<int> members(static_cast<size_t>(size), -1);
  EXPECT_OK(fsccl_all_gather(&parent_rank, members.data(), 1, FSCCL_INT32, comm, nullptr, nullptr));
  return members;
}

TEST(Split, EvenAndOdd) {
  run_ranks(5, [](Rank& self) {
    fsccl_comm_t child = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, self.rank % 2, 0, nullptr, &child));
    EXPECT_EQ(members_of(child, self.rank),
              self.rank % 2 ? (std::vector{1, 3}) : (std::vector{0, 2, 4}));
    EXPECT_EQ(rank_in(child).rank, self.rank / 2);
    EXPECT_OK(fsccl_comm_destroy(child));
  });
}

TEST(Split, KeysOrderAndEqualKeysKeepTheOrder) {
  run_ranks(4, [](Rank& self) {
    fsccl_comm_t reversed = nullptr, pairs = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 7, -self.rank, nullptr, &reversed));
    ASSERT_OK(fsccl_comm_split(self.comm, 7, self.rank < 2 ? 1 : 0, nullptr, &pairs));
    EXPECT_EQ(members_of(reversed, self.rank), (std::vector{3, 2, 1, 0}));
    EXPECT_EQ(members_of(pairs, self.rank), (std::vector{2, 3, 0, 1}));
    {
      const PoolScope pool(reversed);
      Random random(3);
      for (int i = 0; i < 100 && !HasFailure(); ++i)
        run_collective(random_case(random, 4, 50'000), rank_in(reversed), pool.get());
    }
    EXPECT_OK(fsccl_comm_destroy(pairs));
    EXPECT_OK(fsccl_comm_destroy(reversed));
  });
}

TEST(Split, ColorNoneGetsTheNullHandle) {
  run_ranks(3, [](Rank& self) {
    fsccl_comm_t child = reinterpret_cast<fsccl_comm_t>(1);
    ASSERT_OK(
        fsccl_comm_split(self.comm, self.rank == 1 ? FSCCL_COLOR_NONE : 0, 0, nullptr, &child));
    if (self.rank == 1) {
      EXPECT_EQ(child, nullptr);
    } else {
      EXPECT_EQ(members_of(child, self.rank), (std::vector{0, 2}));
      EXPECT_OK(fsccl_comm_destroy(child));
    }
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
  });
}

TEST(Split, OneRankEach) {
  run_ranks(3, [](Rank& self) {
    fsccl_comm_t child = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, self.rank, 0, nullptr, &child));
    EXPECT_EQ(members_of(child, self.rank), std::vector{self.rank});
    EXPECT_OK(fsccl_comm_destroy(child));
  });
}

TEST(Split, OfASplitAndTheParentDestroyedFirst) {
  run_ranks(4, [](Rank& self) {
    fsccl_comm_t half = nullptr, one = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, self.rank / 2, -self.rank, nullptr, &half));
    ASSERT_OK(fsccl_comm_split(half, 3, self.rank, nullptr, &one));
    EXPECT_OK(fsccl_comm_destroy(self.comm));
    self.comm = nullptr;
    EXPECT_OK(fsccl_comm_destroy(half));
    EXPECT_EQ(members_of(one, self.rank),
              self.rank < 2 ? (std::vector{0, 1}) : (std::vector{2, 3}));
    {
      const PoolScope pool(one);
      Random random(3);
      for (int i = 0; i < 50 && !HasFailure(); ++i)
        run_collective(random_case(random, 2, 50'000), rank_in(one), pool.get());
      EXPECT_ERROR(fsccl_comm_destroy(one), FSCCL_ERR_INVALID_STATE, "pool", "destroy");
      ASSERT_OK(fsccl_barrier(one, nullptr, nullptr));
    }
    EXPECT_OK(fsccl_comm_destroy(one));
  });
}

// Operations of parent and children interleave, both blocking and with works. Buffers come from
// pools of either.
TEST(Split, OperationsAndPoolsOfParentAndChildInTurn) {
  for (const char* single_copy : {"auto", "off"}) {
    const Settings settings{{"FSCCL_SINGLE_COPY", single_copy},
                            {"FSCCL_SLOT_BYTES", "8K"},
                            {"FSCCL_EAGER_BYTES", "1K"}};
    run_ranks(4, [](Rank& self) {
      fsccl_comm_t comms[2] = {};
      ASSERT_OK(fsccl_comm_split(self.comm, self.rank % 2, -self.rank, nullptr, &comms[0]));
      ASSERT_OK(fsccl_comm_split(self.comm, self.rank / 2, self.rank, nullptr, &comms[1]));
      {
        const PoolScope of_parent(self.comm), of_first(comms[0]), of_second(comms[1]);
        const fsccl_pool_t pools[] = {of_parent.get(), of_first.get(), of_second.get()};
        const Rank ranks[] = {self, rank_in(comms[0]), rank_in(comms[1])};
        Random random(77), own(static_cast<uint64_t>(self.rank));
        for (int round = 0; round < 60 && !HasFailure(); ++round) {
          std::vector<std::unique_ptr<Collective>> collectives;
          std::vector<fsccl_work_t> works;
          for (uint64_t i = 1 + random.below(6); i > 0; --i) {
            const Rank& where = ranks[random.below(3)];
            const bool blocking = random.below(3) == 0;
            // Each rank may take another pool.
            collectives.push_back(std::make_unique<Collective>(
                random_case(random, where.ranks, 40'000), where, pools[own.below(3)]));
            fsccl_work_t work = nullptr;
            const fsccl_status_t status = collectives.back()->start(blocking ? nullptr : &work);
            ASSERT_GE(status, 0) << explain(status);
            if (work) works.push_back(work);
            dawdle(own);
          }
          for (const fsccl_work_t work : works) ASSERT_OK(fsccl_work_wait(work, -1));
          for (const auto& collective : collectives) collective->check();
        }
      }
      for (fsccl_comm_t comm : comms) EXPECT_OK(fsccl_comm_destroy(comm));
    });
  }
}

// A rank destroys one communicator alone, while it keeps others of the same job.
TEST(Split, DestroyedChildOfAPeerIsNoticed) {
  run_ranks(2, [](Rank& self) {
    fsccl_comm_t child = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 0, 0, nullptr, &child));
    if (self.rank == 0) {
      EXPECT_OK(fsccl_comm_destroy(child));
    } else {
      EXPECT_ERROR(fsccl_barrier(child, nullptr, nullptr), FSCCL_ERR_PEER_DEAD, "rank 0", "left");
      EXPECT_EQ(last_error().peer, 0);
      EXPECT_OK(fsccl_comm_destroy(child));
    }
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));  // the parent is as before
  });
}

TEST(Split, FailureOfAChildLeavesTheParent) {
  run_ranks(2, [](Rank& self) {
    fsccl_comm_t child = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 0, 0, nullptr, &child));
    if (self.rank == 0) {
      EXPECT_OK(fsccl_comm_abort(child));
    }
    EXPECT_ERROR(fsccl_barrier(child, nullptr, nullptr), FSCCL_ERR_ABORTED, "aborted by rank 0");
    EXPECT_OK(fsccl_comm_destroy(child));
    const PoolScope pool(self.comm);
    run_collective({Kind::all_gather, FSCCL_INT32, FSCCL_SUM, 1000, Memory::pool, false, 0, 1},
                   self, pool.get());
  });
}

TEST(Split, ManyAfterEachOther) {
  run_ranks(3, [](Rank& self) {
    for (int i = 0; i < 100; ++i) {
      fsccl_comm_t child = nullptr;
      ASSERT_OK(fsccl_comm_split(self.comm, 0, i % 2 ? self.rank : -self.rank, nullptr, &child));
      int sum = 0;
      ASSERT_OK(
          fsccl_all_reduce(&self.rank, &sum, 1, FSCCL_INT32, FSCCL_SUM, child, nullptr, nullptr));
      EXPECT_EQ(sum, 3);
      ASSERT_OK(fsccl_comm_destroy(child));
    }
  });
}

// To ranks of the parent that are not in the child, the child's pool is private memory. So
// operations of the parent must not move bytes of that pool as they do in a shared pool.
TEST(Split, PoolOfAChildUsedByTheParent) {
  for (const char* single_copy : {"auto", "off"}) {
    const Settings settings{{"FSCCL_SINGLE_COPY", single_copy}};
    run_ranks(3, [](Rank& self) {
      fsccl_comm_t child = nullptr;
      ASSERT_OK(fsccl_comm_split(self.comm, self.rank == 2 ? 1 : 0, 0, nullptr, &child));
      {
        const PoolScope pool(child);
        for (const Kind kind :
             {Kind::all_gather, Kind::reduce_scatter, Kind::all_reduce, Kind::broadcast})
          for (const size_t count : {size_t{1}, size_t{999}, size_t{50'000}})
            run_collective({kind, FSCCL_FLOAT32, FSCCL_SUM, count, Memory::pool, false, 1, count},
                           self, pool.get());
      }
      EXPECT_OK(fsccl_comm_destroy(child));
    });
  }
}

}  // namespace
}  // namespace fsccl::testing
