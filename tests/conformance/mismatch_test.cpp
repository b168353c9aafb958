// A thousand programs in which one rank calls something else than the others, in each field of a collective's fingerprint: an error
// on every rank, with both calls in its text. And programs whose ranks differ where they may: never called a mismatch.
#include <fmt/format.h>

#include "support.h"

namespace fsccl::testing {
namespace {

enum Operation { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kReduce, kGather, kScatter, kAllToAll, kBarrier, kOperations };
constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce",
                                  "gather",     "scatter",        "all_to_all", "barrier"};
constexpr size_t kMost = 3000;  // elements of a rank's part

bool reduces(int op) { return op == kReduceScatter || op == kAllReduce || op == kReduce; }
bool rooted(int op) { return op >= kBroadcast && op <= kScatter; }

struct Call {
  int op = 0;
  size_t count = 0;
  fsccl_dtype_t dtype = FSCCL_FLOAT32;
  fsccl_op_kind_t kind = FSCCL_OP_SUM;
  double scale = 1;  // of FSCCL_OP_PREMUL_SUM
  int root = 0;
};

bool floats(fsccl_dtype_t dtype) { return dtype != FSCCL_INT32; }

Call random_call(Random& random, int ranks) {
  Call call;
  call.op = static_cast<int>(random.below(kOperations));
  call.count = 1 + random.below(random.below(2) ? 20 : kMost - 1);
  const fsccl_dtype_t dtypes[] = {FSCCL_FLOAT32, FSCCL_FLOAT64, FSCCL_INT32, FSCCL_BFLOAT16};
  call.dtype = dtypes[random.below(4)];
  call.kind = static_cast<fsccl_op_kind_t>(random.below(floats(call.dtype) ? 6 : 5));
  call.root = static_cast<int>(random.below(static_cast<uint64_t>(ranks)));
  return call;
}

fsccl_status_t issue(const Call& c, fsccl_comm_t comm, std::vector<double>& in, std::vector<double>& out) {
  const fsccl_op_t op = {c.kind, 0, c.scale};
  void *send = in.data(), *recv = out.data();
  switch (c.op) {
    case kAllGather:
      return fsccl_all_gather(send, recv, c.count, c.dtype, comm, nullptr, nullptr);
    case kReduceScatter:
      return fsccl_reduce_scatter(send, recv, c.count, c.dtype, op, comm, nullptr, nullptr);
    case kAllReduce:
      return fsccl_all_reduce(send, recv, c.count, c.dtype, op, comm, nullptr, nullptr);
    case kBroadcast:
      return fsccl_broadcast(recv, c.count, c.dtype, c.root, comm, nullptr, nullptr);
    case kReduce:
      return fsccl_reduce(send, recv, c.count, c.dtype, op, c.root, comm, nullptr, nullptr);
    case kGather:
      return fsccl_gather(send, recv, c.count, c.dtype, c.root, comm, nullptr, nullptr);
    case kScatter:
      return fsccl_scatter(send, recv, c.count, c.dtype, c.root, comm, nullptr, nullptr);
    case kAllToAll:
      return fsccl_all_to_all(send, recv, c.count, c.dtype, comm, nullptr, nullptr);
    default:
      return fsccl_barrier(comm, nullptr, nullptr);
  }
}

// Changes one field that the operation has.
Call differ(Call call, Random& random, int ranks) {
  const auto other = [&](int now, int bound) {
    return (now + 1 + static_cast<int>(random.below(static_cast<uint64_t>(bound - 1)))) % bound;
  };
  while (true) {
    switch (random.below(6)) {
      case 0:
        call.op = other(call.op, kOperations);
        return call;
      case 1:
        if (call.op == kBarrier) continue;
        call.count = call.count > 1 && random.below(2) ? call.count - 1 : call.count + 1;
        return call;
      case 2:
        if (call.op == kBarrier || call.kind == FSCCL_OP_PREMUL_SUM) continue;
        call.dtype = call.dtype == FSCCL_FLOAT32 ? FSCCL_INT32 : call.dtype == FSCCL_INT32 ? FSCCL_FLOAT64 : FSCCL_FLOAT32;
        return call;
      case 3:
        if (!reduces(call.op)) continue;
        call.kind = static_cast<fsccl_op_kind_t>(other(call.kind, floats(call.dtype) ? 6 : 5));
        return call;
      case 4:
        if (!reduces(call.op) || call.kind != FSCCL_OP_PREMUL_SUM) continue;
        call.scale = 1 + 0x1p-52;
        return call;
      default:
        if (!rooted(call.op)) continue;
        call.root = other(call.root, ranks);
        return call;
    }
  }
}

// What the text of the error has of a call.
std::string words_of(const Call& call) {
  return call.op == kBarrier ? "barrier (operation" : fmt::format("{} of ", kNames[call.op]);
}

class Mismatches : public ::testing::TestWithParam<int> {};

TEST_P(Mismatches, AreToldWithBothCallsOnEveryRank) {
  // The last ones in many rounds, and a reduce whose senders wait for nobody: ranks are further apart when they meet.
  const bool rounds = GetParam() >= 10;
  const Settings settings{{"FSCCL_SLOT_BYTES", rounds ? "4K" : "auto"}, {"FSCCL_PLAN", rounds ? "reduce=small_slots" : ""}};
  for (int i = 0; i < 100 && !HasFailure(); ++i) {
    const uint64_t seed = static_cast<uint64_t>(GetParam() * 100 + i);
    Random random(mix(seed, 1));
    const int ranks = 2 + static_cast<int>(random.below(3));
    std::vector<Call> calls;
    for (uint64_t n = 1 + random.below(4); n > 0; --n) calls.push_back(random_call(random, ranks));
    const int odd = static_cast<int>(random.below(static_cast<uint64_t>(ranks)));
    const Call wrong = differ(calls.back(), random, ranks);
    SCOPED_TRACE(fmt::format("seed {}: rank {} of {} calls {}", seed, odd, ranks, words_of(wrong)));
    run_ranks(ranks, [&](Rank& self) {
      std::vector<double> in(static_cast<size_t>(ranks) * (kMost + 1), 1), out(in.size());
      // A rank may hear of it in an operation before: others are ahead.
      fsccl_status_t status = FSCCL_OK;
      for (size_t n = 0; n < calls.size() && status == FSCCL_OK; ++n)
        status = issue(n + 1 == calls.size() && self.rank == odd ? wrong : calls[n], self.comm, in, out);
      if (status == FSCCL_OK) status = fsccl_barrier(self.comm, nullptr, nullptr);  // an operation that need not see all ranks
      EXPECT_ERROR(status, FSCCL_ERR_MISMATCH, words_of(wrong).c_str(), words_of(calls.back()).c_str(), "they differ in");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Mismatches, ::testing::Range(0, 14));

// Each waits for another one, and who only receives does not always tell that it has entered.
TEST(Differences, OfAllRanksAreTold) {
  for (const size_t count : {size_t{2}, kMost})
    for (const size_t before : {0, 1, 3, 4})
      run_ranks(3, [&](Rank& self) {
        std::vector<double> buffer(kMost, 1);
        const auto broadcast = [&](int root) {
          return fsccl_broadcast(buffer.data(), count, FSCCL_FLOAT64, root, self.comm, nullptr, nullptr);
        };
        for (size_t n = 0; n < before; n++) ASSERT_OK(broadcast(0));
        EXPECT_ERROR(broadcast((self.rank + 1) % 3), FSCCL_ERR_MISMATCH, "broadcast of", "they differ in root");
      });
}

// Tensor parallelism by FSDP: each rank is in a row and a column, uses both in its own rhythm, and does what concerns it alone.
TEST(Differences, ThatAreAllowed) {
  for (uint64_t seed = 0; seed < 30 && !HasFailure(); ++seed)
    run_ranks(4, [seed](Rank& self) {
      fsccl_comm_t row = nullptr, column = nullptr;
      ASSERT_OK(fsccl_comm_split(self.comm, self.rank / 2, self.rank, nullptr, &row));
      ASSERT_OK(fsccl_comm_split(self.comm, self.rank % 2, self.rank, nullptr, &column));
      {
        const PoolScope pool(row);
        Random shared(mix(seed, 1)), own(mix(seed, 2 + static_cast<uint64_t>(self.rank)));
        std::vector<double> in(4 * (kMost + 1), 1), out(in.size());
        std::vector<void*> blocks;
        for (int i = 0; i < 20; ++i) {
          const Call call = random_call(shared, 2);
          // Rows and columns go through the same operations; a rank's neighbours in one are late when those in the other are not.
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
