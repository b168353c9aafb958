// Averages and means, on every way that a sum takes: by signals, through slots, directly, in steps
// and by hosts. An average is what the sum is, divided by the number of ranks and rounded once; so
// that of equal values is that value, in every dtype and for every number of ranks.
#include <algorithm>
#include <numeric>
#include <vector>

#include "mesh.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

constexpr fsccl_dtype_t kFloats[] = {FSCCL_FLOAT16, FSCCL_BFLOAT16, FSCCL_FLOAT32, FSCCL_FLOAT64};

// The results of each collective on this rank for `send`, which has `each` elements for every rank.
struct Results {
  std::vector<char> all, scattered, parted, listed, reduced;

  Results(const Rank& self, fsccl_dtype_t dtype, fsccl_op_t op, size_t each,
          std::vector<char>& send) {
    const size_t size = fsccl_dtype_size(dtype), whole = each * static_cast<size_t>(self.ranks);
    const std::vector<size_t> counts(static_cast<size_t>(self.ranks), each);
    for (std::vector<char>* const one : {&all, &reduced}) one->resize(whole * size);
    for (std::vector<char>* const one : {&scattered, &parted, &listed}) one->resize(each * size);
    EXPECT_OK(
        fsccl_all_reduce(send.data(), all.data(), whole, dtype, op, self.comm, nullptr, nullptr));
    EXPECT_OK(fsccl_reduce_scatter(send.data(), scattered.data(), each, dtype, op, self.comm,
                                   nullptr, nullptr));
    EXPECT_OK(fsccl_reduce_scatter_v(send.data(), parted.data(), counts.data(), dtype, op,
                                     self.comm, nullptr, nullptr));
    const fsccl_tensor_t tensor = {send.data(), listed.data(), counts.data(), dtype};
    EXPECT_OK(fsccl_reduce_scatter_list(&tensor, 1, op, self.comm, nullptr, nullptr));
    EXPECT_OK(fsccl_reduce(send.data(), reduced.data(), whole, dtype, op, self.ranks - 1, self.comm,
                           nullptr, nullptr));
    if (self.rank + 1 < self.ranks) reduced.clear();  // the result is on the root only
  }
  std::vector<const std::vector<char>*> each() const {
    return {&all, &scattered, &parted, &listed, &reduced};
  }
};

class Averages : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Averages, ::testing::Values(2, 3, 4, 5, 6, 7, 8, 9));

TEST_P(Averages, OfEqualValuesAreThatValue) {
  run_ranks(GetParam(), [](Rank& self) {
    for (const fsccl_dtype_t dtype : kFloats)
      for (const size_t each : {1, 3, 40, 3000, 70'000})
        for (const double value : {3.0, dtype == FSCCL_FLOAT16 ? 60'000.0 : 0x1.92p50}) {
          const size_t count = each * static_cast<size_t>(self.ranks);
          std::vector<char> send(count * fsccl_dtype_size(dtype));
          for (size_t i = 0; i < count; ++i) store_float(dtype, send.data(), i, value);
          const Results results(self, dtype, FSCCL_AVG, each, send);
          for (const std::vector<char>* const one : results.each())
            ASSERT_TRUE(std::equal(one->begin(), one->end(), send.begin()))
                << name_of(dtype) << ", " << each
                << " for each rank: " << load_float(dtype, one->data(), 0) << ", not " << value;
        }
  });
}

TEST_P(Averages, AreTheSumsDivided) {
  run_ranks(GetParam(), [](Rank& self) {
    for (const fsccl_dtype_t dtype : {FSCCL_FLOAT32, FSCCL_FLOAT64})
      for (const size_t each : {1, 2, 50, 4000, 70'000}) {
        const size_t size = fsccl_dtype_size(dtype);
        std::vector<char> send(each * static_cast<size_t>(self.ranks) * size);
        fill_values(dtype, send.data(), send.size() / size, static_cast<uint64_t>(self.rank) + each,
                    false);
        const Results sums(self, dtype, FSCCL_SUM, each, send),
            averages(self, dtype, FSCCL_AVG, each, send);
        for (size_t k = 0; k < sums.each().size(); ++k) {
          const std::vector<char>&sum = *sums.each()[k], &average = *averages.each()[k];
          std::vector<char> want(sum.size());
          for (size_t i = 0; i < sum.size() / size; ++i) {
            const double value = load_float(dtype, sum.data(), i);
            const double quotient = dtype == FSCCL_FLOAT64
                                        ? value / self.ranks
                                        : static_cast<double>(static_cast<float>(value) /
                                                              static_cast<float>(self.ranks));
            store_float(dtype, want.data(), i, quotient);
          }
          ASSERT_EQ(average, want)
              << name_of(dtype) << ", " << each << " for each rank, result " << k;
        }
      }
  });
}

// An average of integers is the wrapped sum, divided and truncated towards zero. An average of bool
// is true if all are true.
TEST_P(Averages, OfIntegersAndBool) {
  run_ranks(GetParam(), [](Rank& self) {
    std::vector<int8_t> bytes = {127, -128, 3, -3, 0};
    EXPECT_OK(fsccl_all_reduce(bytes.data(), bytes.data(), bytes.size(), FSCCL_INT8, FSCCL_AVG,
                               self.comm, nullptr, nullptr));
    std::vector<int8_t> want;
    for (const int value : {127, -128, 3, -3, 0})
      want.push_back(static_cast<int8_t>(static_cast<int8_t>(value * self.ranks) / self.ranks));
    EXPECT_EQ(bytes, want);
    std::vector<uint8_t> truths = {1, 0, static_cast<uint8_t>(self.rank == 0)};
    EXPECT_OK(fsccl_all_reduce(truths.data(), truths.data(), truths.size(), FSCCL_BOOL, FSCCL_AVG,
                               self.comm, nullptr, nullptr));
    EXPECT_EQ(truths, (std::vector<uint8_t>{1, 0, 0}));
  });
}

void fill_grads(const TestUnit& unit, fsccl_dtype_t dtype,
                const std::function<double(uint64_t)>& value) {
  for (size_t i = 0; i < unit.size(); ++i) {
    fsccl_view_t view{};
    ASSERT_OK(fsccl_unit_grad(unit.get(), i, nullptr, &view));
    for (uint64_t k = 0; k < view.count; ++k) store_float(dtype, view.data, k, value(k));
  }
}

std::vector<double> sharded_grads(const TestUnit& unit) {
  std::vector<double> values;
  for (size_t i = 0; i < unit.size(); ++i) {
    fsccl_view_t view{};
    EXPECT_OK(fsccl_unit_sharded_grad(unit.get(), i, &view));
    for (uint64_t k = 0; k < view.count; ++k)
      values.push_back(load_float(view.dtype, view.data, k));
  }
  return values;
}

UnitCase unit_of(fsccl_layout_t layout, fsccl_dtype_t reduce, fsccl_dtype_t grad) {
  UnitCase c = simple_unit({{37, 11}, {5}, {64, 3}});
  c.layout = layout;
  c.reduce = reduce;
  c.grad = grad;
  return c;
}

void check_means(fsccl_comm_t shards, fsccl_comm_t replicas, fsccl_pool_t pool, int rank,
                 double contributions) {
  for (const fsccl_layout_t layout :
       {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED})
    for (const fsccl_dtype_t reduce : kFloats)
      for (const fsccl_dtype_t grad : kFloats) {
        const UnitCase c = unit_of(layout, reduce, grad);
        TestUnit unit(c, shards, pool, replicas);
        const double value = reduce == FSCCL_FLOAT16 && fsccl_dtype_size(grad) > 2 ? 60'000 : 3;
        fill_grads(unit, reduce, [&](uint64_t) { return value; });
        unit.reduce(nullptr);
        for (const double mean : sharded_grads(unit)) ASSERT_EQ(mean, value) << describe(c);
        if (fsccl_dtype_size(grad) == 2) continue;
        // The mean must equal the sum, divided by the number of contributions and rounded.
        const auto any = [&](uint64_t k) {
          return static_cast<double>((static_cast<uint64_t>(rank) * 7919 + k * 104729) % 1009) / 64;
        };
        fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
        config.scale = 1;
        fill_grads(unit, reduce, any);
        unit.reduce(&config);
        std::vector<double> want = sharded_grads(unit);
        for (double& sum : want) sum = round_to(grad, sum / contributions);
        fill_grads(unit, reduce, any);
        unit.reduce(nullptr);
        ASSERT_EQ(sharded_grads(unit), want) << describe(c);
      }
}

TEST_P(Averages, OfGradients) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    check_means(self.comm, nullptr, pool.get(), self.rank, self.ranks);
  });
}

TEST_P(Averages, OfGradientsOverReplicas) {
  for (const int groups : {2, 3}) {
    if (GetParam() % groups) continue;
    run_ranks(GetParam(), [&](Rank& self) {
      const Mesh mesh(self, groups);
      const PoolScope pool(self.comm);
      check_means(mesh.shard, mesh.replicas, pool.get(), self.rank, self.ranks);
    });
  }
}

// Several reductions come before one sum over the replicas: means, and one that is scaled. They add
// up as if each were by itself.
TEST(AveragesOverReplicas, OfSeveralReductions) {
  run_ranks(6, [](Rank& self) {
    const Mesh mesh(self, 3);
    const PoolScope pool(self.comm);
    for (const fsccl_dtype_t grad : {FSCCL_FLOAT32, FSCCL_BFLOAT16})
      for (const double first : {0.0, 0.5}) {
        TestUnit unit(unit_of(FSCCL_LAYOUT_FLAT, FSCCL_BFLOAT16, grad), mesh.shard, pool.get(),
                      mesh.replicas);
        fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
        double want = 0;
        for (const double scale : {first, 0.0, 0.25}) {
          config.scale = scale;
          config.defer_replicas = scale != 0.25;
          fill_grads(unit, FSCCL_BFLOAT16, [](uint64_t) { return 4.0; });
          unit.reduce(&config);
          want += scale == 0 ? 4 : 4 * scale * 6;
          config.accumulate = 1;
        }
        for (const double value : sharded_grads(unit)) ASSERT_EQ(value, want);
      }
  });
}

}  // namespace
}  // namespace fsccl::testing
