// Tests the plain collectives: every operation, dtype, operator, memory and form, for counts around
// all limits, and random ones under settings that force each way through the engine.
#include "collective_case.h"
#include "fsccl/insight.h"

namespace fsccl::testing {
namespace {

class Collectives : public ::testing::TestWithParam<int> {};

std::vector<size_t> small_counts(size_t size) { return {0, 1, 3, 24 / size, 24 / size + 1, 1000}; }

void sweep(const Rank& self, fsccl_pool_t pool, fsccl_dtype_t dtype, size_t count) {
  for (const Memory memory : {Memory::caller, Memory::pool, Memory::mixed})
    for (const bool in_place : {false, true}) {
      CollectiveCase c;
      c.dtype = dtype;
      c.count = count;
      c.memory = memory;
      c.in_place = in_place;
      c.seed = mix(
          count, static_cast<uint64_t>(dtype) * 16 + static_cast<uint64_t>(memory) * 2 + in_place);
      c.kind = Kind::all_gather;
      run_collective(c, self, pool);
      for (const fsccl_op_t& op : operators_of(dtype))
        for (const Kind kind : {Kind::reduce_scatter, Kind::all_reduce}) {
          c.op = op;
          c.kind = kind;
          c.seed++;
          run_collective(c, self, pool);
        }
      if (in_place) continue;
      c.kind = Kind::broadcast;
      c.root = static_cast<int>(c.seed % static_cast<uint64_t>(self.ranks));
      run_collective(c, self, pool);
    }
}

TEST_P(Collectives, EveryDtypeOperatorMemoryAndForm) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    for (int dtype = 0; dtype < FSCCL_DTYPE_COUNT; ++dtype)
      for (const size_t count : small_counts(fsccl_dtype_size(static_cast<fsccl_dtype_t>(dtype)))) {
        sweep(self, pool.get(), static_cast<fsccl_dtype_t>(dtype), count);
        if (HasFailure()) return;
      }
    CollectiveCase barrier;
    run_collective(barrier, self, pool.get());
  });
}

TEST_P(Collectives, LargerCounts) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    // The large count is 3 MiB of float32 and a little more.
    const size_t large = self.ranks > 3 ? 0 : (size_t{3} << 18) + 5;
    for (const Kind kind :
         {Kind::all_gather, Kind::reduce_scatter, Kind::all_reduce, Kind::broadcast})
      for (const Memory memory : {Memory::caller, Memory::mixed})
        for (const size_t count : {size_t{4097}, size_t{25'600}, large}) {
          const bool in_place = memory == Memory::mixed && kind != Kind::broadcast;
          run_collective(
              {kind, FSCCL_FLOAT32, FSCCL_SUM, count, memory, in_place, self.ranks - 1, count},
              self, pool.get());
          if (count < 10'000)
            run_collective({kind, FSCCL_BFLOAT16, FSCCL_AVG, count, memory,
                            !in_place && kind != Kind::broadcast, 0, count},
                           self, pool.get());
        }
  });
}

INSTANTIATE_TEST_SUITE_P(Shm, Collectives, ::testing::Values(1, 2, 3, 4, 5, 8),
                         ::testing::PrintToStringParamName());

// -------------------------------------------------------------------------------------------------
// settings

struct CollectiveWay {
  const char* name;
  const char *single_copy, *eager_bytes, *slot_bytes, *streaming_bytes, *spin_us;
};
std::ostream& operator<<(std::ostream& out, const CollectiveWay& way) { return out << way.name; }

constexpr CollectiveWay kCollectiveWays[] = {
    {"Defaults", "auto", "8K", "32K", "auto", "auto"},
    {"Slots", "off", "16K", "1M", "auto", "auto"},
    {"SmallSlots", "off", "0", "4K", "auto", "0"},
    {"EagerAboveSlot", "off", "64K", "4K", "auto", "auto"},
    {"KernelCopies", "on", "0", "1M", "auto", "auto"},
    {"EverythingEager", "auto", "1M", "1M", "auto", "auto"},
    {"EverythingStreams", "auto", "4K", "1M", "0", "0"},
};

class Ways : public ::testing::TestWithParam<std::tuple<CollectiveWay, int>> {};

TEST_P(Ways, RandomCases) {
  const auto& [way, ranks] = GetParam();
  const Settings settings{{"FSCCL_SINGLE_COPY", way.single_copy},
                          {"FSCCL_EAGER_BYTES", way.eager_bytes},
                          {"FSCCL_SLOT_BYTES", way.slot_bytes},
                          {"FSCCL_STREAMING_BYTES", way.streaming_bytes},
                          {"FSCCL_SPIN_US", way.spin_us}};
  run_ranks(ranks, [](Rank& self) {
    const PoolScope pool(self.comm);
    Random random(static_cast<uint64_t>(self.ranks));
    for (int i = 0; i < 250 && !HasFailure(); ++i)
      run_collective(random_case(random, self.ranks, 100'000), self, pool.get());
  });
}

INSTANTIATE_TEST_SUITE_P(Shm, Ways,
                         ::testing::Combine(::testing::ValuesIn(kCollectiveWays),
                                            ::testing::Values(2, 3, 5)),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param).name) + "_" +
                                  std::to_string(std::get<1>(one.param));
                         });

class Staging : public ::testing::TestWithParam<int> {
 protected:
  const Settings settings_{
      {"FSCCL_SINGLE_COPY", "off"}, {"FSCCL_EAGER_BYTES", "0"}, {"FSCCL_SLOT_BYTES", "4K"}};
};

// The data end exactly at a chunk's end, or just before or behind it. A short last chunk may fit
// into a signal.
TEST_P(Staging, CountsAroundChunks) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    const auto parts = static_cast<size_t>(self.ranks);
    for (const Kind kind :
         {Kind::all_gather, Kind::reduce_scatter, Kind::all_reduce, Kind::broadcast})
      for (const fsccl_dtype_t dtype : {FSCCL_UINT8, FSCCL_BFLOAT16, FSCCL_FLOAT64}) {
        const bool parted = kind == Kind::all_gather || kind == Kind::reduce_scatter;
        const size_t chunk = 4096 / fsccl_dtype_size(dtype) / (parted ? parts : 1) / 64 * 64;
        for (const size_t count :
             {chunk - 1, chunk, chunk + 1, chunk + 3, 3 * chunk, 3 * chunk + 2})
          for (const Memory memory : {Memory::caller, Memory::mixed}) {
            if (HasFailure()) return;
            run_collective({kind, dtype, FSCCL_SUM, count, memory,
                            kind != Kind::broadcast && count % 2 == 1, 0, count},
                           self, pool.get());
          }
      }
  });
}

// There are more different calls than the library keeps plans for, and a staged call needs several
// plans at once.
TEST_P(Staging, ManyDifferentCalls) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    for (size_t i = 0; i < 3000 && !HasFailure(); ++i) {
      const auto kind = static_cast<Kind>(i % 4);
      run_collective({kind, FSCCL_INT16, FSCCL_MAX, 30 + i, Memory::caller, false, 0, i}, self,
                     pool.get());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shm, Staging, ::testing::Values(1, 2, 3, 5),
                         ::testing::PrintToStringParamName());

// -----------------------------------------------------------------------------------------------
// particular values

TEST(Values, MinAndMaxReturnNaN) {
  run_ranks(3, [](Rank& self) {
    for (const fsccl_dtype_t dtype : {FSCCL_FLOAT16, FSCCL_BFLOAT16, FSCCL_FLOAT32, FSCCL_FLOAT64})
      for (const fsccl_op_t& op : {FSCCL_MIN, FSCCL_MAX})
        for (const size_t count : {size_t{3}, size_t{100}}) {
          std::vector<double> send(count), recv(count);
          for (size_t i = 0; i < count; ++i)
            store_float(
                dtype, send.data(), i,
                static_cast<int>(i % 3) == self.rank ? std::nan("") : static_cast<double>(i));
          ASSERT_OK(fsccl_all_reduce(send.data(), recv.data(), count, dtype, op, self.comm, nullptr,
                                     nullptr));
          for (size_t i = 0; i < count; ++i)
            EXPECT_TRUE(std::isnan(load_float(dtype, recv.data(), i)))
                << name_of(dtype) << " element " << i;
        }
  });
}

// A sum has the same bits on all ranks and in every run, whatever the memory.
TEST(Values, SumsHaveTheSameBitsEverywhere) {
  run_ranks(5, [](Rank& self) {
    const PoolScope pool(self.comm);
    for (const size_t count : {size_t{5}, size_t{3000}, size_t{70'000}}) {
      std::vector<float> first;
      for (int turn = 0; turn < 4; ++turn) {
        void* block = nullptr;
        ASSERT_OK(fsccl_pool_alloc(pool.get(), count * sizeof(float), nullptr, &block));
        std::vector<float> own(count);
        auto* const values = turn % 2 ? static_cast<float*>(block) : own.data();
        fill_values(FSCCL_FLOAT32, values, count, mix(count, static_cast<uint64_t>(self.rank)),
                    false);
        ASSERT_OK(fsccl_all_reduce(values, values, count, FSCCL_FLOAT32, FSCCL_AVG, self.comm,
                                   nullptr, nullptr));
        std::vector<float> all(count * 5);
        ASSERT_OK(fsccl_all_gather(values, all.data(), count, FSCCL_FLOAT32, self.comm, nullptr,
                                   nullptr));
        for (size_t q = 1; q < 5; ++q)
          EXPECT_EQ(memcmp(all.data(), all.data() + q * count, count * sizeof(float)), 0)
              << "rank " << q;
        if (turn == 0) first.assign(values, values + count);
        EXPECT_EQ(memcmp(first.data(), values, count * sizeof(float)), 0) << "turn " << turn;
        EXPECT_OK(fsccl_pool_free(pool.get(), block, nullptr));
      }
    }
  });
}

TEST(Counters, CountOperationsAndBytes) {
  run_ranks(2, [](Rank& self) {
    fsccl_counters_t before = FSCCL_COUNTERS_INIT, after = FSCCL_COUNTERS_INIT;
    ASSERT_OK(fsccl_comm_counters(self.comm, &before));
    std::vector<float> send(1000), recv(2000);
    for (int i = 0; i < 3; ++i)
      ASSERT_OK(fsccl_all_gather(send.data(), recv.data(), 1000, FSCCL_FLOAT32, self.comm, nullptr,
                                 nullptr));
    ASSERT_OK(fsccl_comm_counters(self.comm, &after));
    EXPECT_EQ(after.operations - before.operations, 3u);
    EXPECT_GE(after.bytes_written - before.bytes_written, 3u * 8000);
  });
}

// There are more ranks than cores. A small operation must not wait for the peers' time slices.
TEST(Oversubscribed, EightRanksManySmallOperations) {
  run_ranks(8, [](Rank& self) {
    int64_t sum = 0;
    for (int64_t i = 0; i < 2000; ++i) {
      const int64_t mine = i + self.rank;
      ASSERT_OK(
          fsccl_all_reduce(&mine, &sum, 1, FSCCL_INT64, FSCCL_SUM, self.comm, nullptr, nullptr));
      ASSERT_EQ(sum, 8 * i + 28);
    }
  });
}

}  // namespace
}  // namespace fsccl::testing
