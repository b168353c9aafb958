// Runs a thousand programs in which one rank calls something else than the others, in each field of
// an operation's fingerprint. Every rank must get an error with both calls in its text. Programs
// whose ranks differ only in ways that are allowed never get this error.
#include <fmt/format.h>

#include "fsccl/insight.h"
#include "mismatch_case.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

class Mismatches : public ::testing::TestWithParam<int> {};

TEST_P(Mismatches, AreToldWithBothCallsOnEveryRank) {
  constexpr Field kFields[] = {Field::op,    Field::dtype,    Field::kind,   Field::root,
                               Field::count, Field::sequence, Field::history};
  // In the last programs operations take many rounds, and the senders of a reduce wait for nobody,
  // so ranks are further apart when a difference is found.
  const bool rounds = GetParam() >= 10;
  const Settings settings{{"FSCCL_SLOT_BYTES", rounds ? "4K" : "auto"},
                          {"FSCCL_PLAN", rounds ? "reduce=small_slots" : ""}};
  for (int i = 0; i < 98 && !HasFailure(); ++i) {
    const uint64_t seed = static_cast<uint64_t>(GetParam() * 100 + i);
    const Field field = kFields[seed % std::size(kFields)];
    Random random(mix(seed, 1));
    const int ranks = 2 + static_cast<int>(random.below(3)),
              odd = static_cast<int>(random.below(static_cast<uint64_t>(ranks)));
    std::vector<Call> calls, odd_calls;
    for (uint64_t n = 1 + random.below(4); n > 0; --n) calls.push_back(random_call(random, ranks));
    Call wrong = calls.back();
    while (!differ(field, seed / std::size(kFields), &wrong, random))
      wrong = calls.back() = random_call(random, ranks);
    odd_calls = calls;
    odd_calls.back() = wrong;
    // The other ranks make one call more, so they make this call one call later.
    if (field == Field::sequence) calls.push_back(wrong);
    const Call right = calls[odd_calls.size() - 1];
    const std::string said = fmt::format("rank {} calls {}", odd, words_of(wrong));
    SCOPED_TRACE(fmt::format("seed {}: {} of {}, not {}", seed, said, ranks, words_of(right)));
    run_ranks(ranks, [&](Rank& self) {
      std::vector<double> in(most_elements(ranks), 1), out(in.size());
      // A rank may hear of the difference in an earlier operation, because others are ahead.
      fsccl_status_t status = FSCCL_OK;
      for (const Call& call : self.rank == odd ? odd_calls : calls)
        if (status == FSCCL_OK) status = issue(call, self.comm, in, out);
      // Some operations do not make every rank wait for all others, so a barrier follows.
      if (status == FSCCL_OK) status = fsccl_barrier(self.comm, nullptr, nullptr);
      EXPECT_ERROR(status, FSCCL_ERR_MISMATCH, said.c_str(), words_of(right).c_str(),
                   "they differ in", word_of(field, wrong));
    });
  }
}

// The arguments of a unit's operations in which ranks can differ, besides the fields above.
enum Difference { kWritable, kKept, kAccumulated, kDeferred, kScaled, kOrdered, kDifferences };

fsccl_status_t unshard(TestUnit& unit) {
  return fsccl_unit_unshard(unit.get(), FSCCL_UNSHARD_READ, nullptr, nullptr);
}
fsccl_status_t reshard(TestUnit& unit) { return fsccl_unit_reshard(unit.get(), nullptr); }

// Runs `steps` of a unit, and then this rank's call, which differs if `odd`. A rank may hear of the
// difference before that call, because others are ahead. With one step all ranks have made their
// units when the first of them differs.
fsccl_status_t steps_that_differ(int64_t steps, int difference, bool odd, TestUnit& unit,
                                 TestUnit& other) {
  for (; steps > 0; --steps)
    for (const auto call : {unshard, reshard})
      if (const fsccl_status_t status = call(unit); status != FSCCL_OK) return status;
  fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
  switch (difference) {
    case kWritable:
      return fsccl_unit_unshard(unit.get(), odd ? FSCCL_UNSHARD_WRITABLE : FSCCL_UNSHARD_READ,
                                nullptr, nullptr);
    case kKept:
      if (odd) {
        EXPECT_OK(fsccl_unit_mark_changed(unit.get()));
      }
      return unshard(unit);
    case kOrdered:
      for (TestUnit* each : {&unit, &other})
        if (const fsccl_status_t status = unshard(*each); status != FSCCL_OK) return status;
      for (TestUnit* each : {odd ? &unit : &other, odd ? &other : &unit})
        if (const fsccl_status_t status = reshard(*each); status != FSCCL_OK) return status;
      return unshard(unit);
    default:
      // The gradients lie in memory of the caller, because fsccl_unit_grad() would fail as soon as
      // ranks that are ahead have found the difference.
      config.grads = unit.own_grads(1, unit.rank());
      config.accumulate = difference == kAccumulated && odd;
      config.defer_replicas = difference == kDeferred && odd;
      config.scale = difference == kScaled && odd ? 0.25 : 0.5;
      return fsccl_unit_reduce_grads(unit.get(), &config, nullptr, nullptr);
  }
}

TEST_P(Mismatches, OfUnitsAreToldWithBothCallsOnEveryRank) {
  for (int i = 0; i < 12 && !HasFailure(); ++i) {
    const int difference = i % kDifferences;
    const Field field =
        difference == kScaled || difference == kOrdered ? Field::history : Field::flags;
    const bool reduces = difference >= kAccumulated && difference <= kScaled;
    const uint64_t seed = static_cast<uint64_t>(GetParam() * 100 + i);
    Random random(mix(seed, 2));
    const int ranks = 2 + static_cast<int>(random.below(3)),
              odd = static_cast<int>(random.below(static_cast<uint64_t>(ranks)));
    const auto rows = static_cast<int64_t>(1 + random.below(3000)),
               steps = static_cast<int64_t>(1 + random.below(3));
    UnitCase c = simple_unit({{rows, 3}}, seed + 1);
    if (difference == kKept) c.keep = FSCCL_KEEP_ALWAYS;
    SCOPED_TRACE(
        fmt::format("seed {}: rank {} of {} differs in way {}", seed, odd, ranks, difference));
    const std::string said =
        fmt::format("rank {} calls {} of ", odd, reduces ? "unit_reduce_grads" : "unit_unshard");
    run_ranks(ranks, [&](Rank& self) {
      fsccl_comm_t alone = nullptr;  // one replica
      ASSERT_OK(fsccl_comm_split(self.comm, self.rank, 0, nullptr, &alone));
      {
        const PoolScope pool(self.comm);
        TestUnit unit(c, self.comm, pool.get(), difference == kDeferred ? alone : nullptr),
            other(c, self.comm, pool.get());
        unit.write_shards(1);
        other.write_shards(1);
        EXPECT_ERROR(steps_that_differ(steps, difference, self.rank == odd, unit, other),
                     FSCCL_ERR_MISMATCH, said.c_str(), "they differ in", word_of(field));
      }
      EXPECT_OK(fsccl_comm_destroy(alone));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Mismatches, ::testing::Range(0, 14));

// One rank makes the second call from another call site than the others, with bytes that travel in
// signals or in slots, and with large ones.
TEST(Sites, OfCallsThatHaveChangedPlacesAreToldBeforeAResultIsRead) {
  constexpr int kCalls[] = {kAllGather,      kReduceScatter, kAllReduce,         kBroadcast,
                            kReduce,         kAllToAll,      kBarrier,           kAllGatherV,
                            kReduceScatterV, kAllGatherList, kReduceScatterList, kBroadcastList};
  for (const size_t count : {size_t{1}, size_t{40}, kMost})
    for (const int op : kCalls) {
      SCOPED_TRACE(fmt::format("{} of {}", kNames[op], count));
      run_ranks(3, [&](Rank& self) {
        std::vector<double> in(most_elements(3), 1), out(in.size());
        Call call;
        call.op = op;
        call.ranks = 3;
        call.count = count;
        constexpr uint64_t kFirst = 0x1234567890abcdef, kSecond = 0x0f;
        EXPECT_OK(fsccl_comm_set_site(self.comm, kFirst));
        EXPECT_OK(issue(call, self.comm, in, out));  // all ranks call from one site here
        EXPECT_OK(fsccl_comm_set_site(self.comm, self.rank == 1 ? kSecond : kFirst));
        fsccl_status_t status = issue(call, self.comm, in, out);
        // A rank that only sends, or that signals to nobody, hears of the difference in the next
        // call.
        if (status == FSCCL_OK) status = fsccl_barrier(self.comm, nullptr, nullptr);
        if (op == kBroadcast || op == kBroadcastList || op == kReduce) {
          EXPECT_ERROR(status, FSCCL_ERR_MISMATCH, "they differ in");
        } else {
          EXPECT_ERROR(status, FSCCL_ERR_MISMATCH, "site 0x1234567890abcdef",
                       "site 0x000000000000000f");
        }
      });
    }
}

// A result that a rank can read comes from calls of one site.
TEST(Sites, NothingIsReceivedFromAnotherSite) {
  for (const size_t count : {size_t{1}, size_t{3}, size_t{1000}, size_t{1} << 20}) {
    run_ranks(2, [&](Rank& self) {
      std::vector<float> mine(count, self.rank == 0 ? 1.0f : 2.0f), out(2 * count, -1.0f);
      EXPECT_OK(fsccl_comm_set_site(self.comm, self.rank == 0 ? 1 : 2));
      EXPECT_ERROR(fsccl_all_gather(mine.data(), out.data(), count, FSCCL_FLOAT32, self.comm,
                                    nullptr, nullptr),
                   FSCCL_ERR_MISMATCH, "site 0x0000000000000001");
    });
  }
}

TEST(Sites, MessagesHaveNoneAndZeroIsNone) {
  run_ranks(2, [](Rank& self) {
    int value = self.rank;
    EXPECT_OK(fsccl_comm_set_site(self.comm, 1 + static_cast<uint64_t>(self.rank)));
    if (self.rank == 0)
      EXPECT_OK(fsccl_send(&value, 1, FSCCL_INT32, 1, 0, self.comm, nullptr, nullptr));
    else
      EXPECT_OK(fsccl_recv(&value, 1, FSCCL_INT32, 0, 0, self.comm, nullptr, nullptr));
    EXPECT_EQ(value, 0);
    EXPECT_OK(fsccl_comm_set_site(self.comm, 0));
    EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    EXPECT_ERROR(fsccl_comm_set_site(nullptr, 1), FSCCL_ERR_INVALID_HANDLE, "communicator");
  });
}

// Each rank names another root, so each waits for another rank. A rank that only receives does not
// always signal that it has entered the operation.
TEST(Differences, OfAllRanksAreTold) {
  for (const size_t count : {size_t{2}, kMost})
    for (const size_t before : {0, 1, 3, 4})
      run_ranks(3, [&](Rank& self) {
        std::vector<double> buffer(kMost, 1);
        const auto broadcast = [&](int root) {
          return fsccl_broadcast(buffer.data(), count, FSCCL_FLOAT64, root, self.comm, nullptr,
                                 nullptr);
        };
        fsccl_status_t status = FSCCL_OK;
        // Other ranks may be ahead, so an earlier call may fail already.
        for (size_t n = 0; n < before && status == FSCCL_OK; n++) status = broadcast(0);
        if (status == FSCCL_OK) status = broadcast((self.rank + 1) % 3);
        EXPECT_ERROR(status, FSCCL_ERR_MISMATCH, "broadcast of", "they differ in root");
      });
}

// The program is tensor parallelism by FSDP: each rank is in a row and a column, uses both in its
// own rhythm, and makes further calls that concern it alone.
TEST(Differences, ThatAreAllowed) {
  for (uint64_t seed = 0; seed < 30 && !HasFailure(); ++seed)
    run_ranks(4, [seed](Rank& self) {
      fsccl_comm_t row = nullptr, column = nullptr;
      ASSERT_OK(fsccl_comm_split(self.comm, self.rank / 2, self.rank, nullptr, &row));
      ASSERT_OK(fsccl_comm_split(self.comm, self.rank % 2, self.rank, nullptr, &column));
      {
        const PoolScope pool(row);
        Random shared(mix(seed, 1)), own(mix(seed, 2 + static_cast<uint64_t>(self.rank)));
        std::vector<double> in(most_elements(2), 1), out(in.size());
        std::vector<void*> blocks;
        for (int i = 0; i < 20; ++i) {
          const Call call = random_call(shared, 2);
          // All rows and columns call the same operations. A rank's neighbours in one are late when
          // those in the other are not.
          dawdle(own);
          ASSERT_OK(issue(call, row, in, out));
          if (own.below(2)) {
            void* block = nullptr;
            ASSERT_OK(fsccl_pool_alloc(pool.get(), own.below(10'000), nullptr, &block));
            blocks.push_back(block);
          }
          dawdle(own);
          ASSERT_OK(issue(call, column, in, out));
          if (!blocks.empty() && own.below(2)) {
            ASSERT_OK(fsccl_pool_free(pool.get(), blocks.back(), nullptr));
            blocks.pop_back();
          }
        }
        for (void* block : blocks) ASSERT_OK(fsccl_pool_free(pool.get(), block, nullptr));
      }
      EXPECT_OK(fsccl_comm_destroy(row));
      EXPECT_OK(fsccl_comm_destroy(column));
    });
}

}  // namespace
}  // namespace fsccl::testing
