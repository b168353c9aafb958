// Tests that results have the same bits whatever the floating-point mode of the threads is that
// compute them: those of the program, or those of the library, which begin with the mode of the
// thread that starts them.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cfenv>
#include <memory>
#include <vector>

#include "codec_case.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

// Rounds this thread's results upwards, and makes its subnormal numbers zeros, if `differs`.
class ThreadMode {
 public:
  explicit ThreadMode(bool differs) {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
    if (differs) {
      std::fesetround(FE_UPWARD);
      take_subnormals_as_zeros();
    }
  }
  ~ThreadMode() { std::fesetenv(&before_); }
  ThreadMode(const ThreadMode&) = delete;

 private:
  static void take_subnormals_as_zeros() {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#elif defined(__aarch64__)
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    asm volatile("msr fpcr, %0" : : "r"(mode | uint64_t{1} << 24 | uint64_t{1} << 19));
#endif
  }
  fenv_t before_;
};

// The threads that have another mode than the one that programs start with.
enum class Differs { none, calls_of_one_rank, threads_of_library };

// Runs `body` on ranks. It gets a function with which a rank makes its calls into the library.
using Body = std::function<void(Rank&, const std::function<void(const std::function<void()>&)>&)>;
void run_with(Differs differs, int ranks, const Body& body) {
  const ThreadMode start(differs == Differs::threads_of_library);
  run_ranks(ranks, [&](Rank& self) {
    const ThreadMode own(false);
    body(self, [&](const std::function<void()>& call) {
      const ThreadMode other(differs == Differs::calls_of_one_rank && self.rank == 0);
      call();
    });
  });
}

// Fills elements of a float with bits that are partly subnormal numbers and partly between 2^-15
// and 2.
template <class Bits>
void fill_bits(std::vector<char>& bytes, int mantissa, Random& random) {
  const unsigned digits = 8 * sizeof(Bits) - 1;
  const uint64_t one = (uint64_t{1} << (digits - static_cast<unsigned>(mantissa) - 1)) - 1;
  for (size_t i = 0; i < bytes.size() / sizeof(Bits); i++) {
    const uint64_t bits = random.next(), exponent = i % 2 ? 0 : one - random.below(15);
    const auto value = static_cast<Bits>((bits & ((uint64_t{1} << mantissa) - 1)) |
                                         exponent << mantissa | (bits >> 63) << digits);
    std::memcpy(&bytes[i * sizeof(Bits)], &value, sizeof value);
  }
}
std::vector<char> inputs(fsccl_dtype_t dtype, size_t count, int rank) {
  std::vector<char> bytes(count * fsccl_dtype_size(dtype));
  Random random(mix(static_cast<uint64_t>(rank) + 1, count));
  if (dtype == FSCCL_FLOAT64)
    fill_bits<uint64_t>(bytes, 52, random);
  else if (dtype == FSCCL_FLOAT32)
    fill_bits<uint32_t>(bytes, 23, random);
  else
    fill_bits<uint16_t>(bytes, dtype == FSCCL_BFLOAT16 ? 7 : 10, random);
  return bytes;
}

// The hashes of the results of each rank.
using EveryResult = std::vector<std::vector<uint64_t>>;

uint64_t hash(const void* data, size_t bytes) {
  uint64_t found = bytes;
  for (size_t i = 0; i < bytes; i++)
    found = (found ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  return found;
}

void sum(std::vector<uint64_t>* results, Rank& self, fsccl_dtype_t dtype, size_t count,
         fsccl_op_t op, const std::function<void(const std::function<void()>&)>& calling) {
  const std::vector<char> send = inputs(dtype, count, self.rank);
  for (const bool waits : {false, true}) {
    std::vector<char> all(send.size());
    calling([&] {
      fsccl_work_t work = nullptr;
      ASSERT_GE(fsccl_all_reduce(send.data(), all.data(), count, dtype, op, self.comm, nullptr,
                                 waits ? &work : nullptr),
                0);
      if (work) {
        ASSERT_OK(fsccl_work_wait(work, -1));
      }
    });
    results->push_back(hash(all.data(), all.size()));
  }
}

EveryResult sums(Differs differs, int ranks) {
  EveryResult results(static_cast<size_t>(ranks));
  run_with(differs, ranks, [&](Rank& self, const auto& calling) {
    for (const fsccl_dtype_t dtype : {FSCCL_FLOAT32, FSCCL_BFLOAT16, FSCCL_FLOAT16, FSCCL_FLOAT64})
      for (const fsccl_op_t op : {FSCCL_SUM, FSCCL_AVG, fsccl_premul_sum(0.3)})
        for (const size_t count : {1, 64, 4096, 1 << 20})
          sum(&results[static_cast<size_t>(self.rank)], self, dtype, count, op, calling);
  });
  return results;
}

// Returns the results of `run` in a process of its own, whose library starts its threads anew.
EveryResult in_child(EveryResult (*run)(Differs, int), Differs differs, int ranks) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    for (const std::vector<uint64_t>& of_rank : run(differs, ranks)) {
      const size_t bytes = of_rank.size() * sizeof of_rank[0];
      EXPECT_EQ(write(ends[1], of_rank.data(), bytes), static_cast<ssize_t>(bytes));
    }
    _exit(::testing::Test::HasFailure());
  }
  close(ends[1]);
  std::vector<uint64_t> all;
  for (uint64_t one; read(ends[0], &one, sizeof one) == sizeof one;) all.push_back(one);
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EveryResult results(static_cast<size_t>(ranks));
  const size_t each = all.size() / results.size();
  EXPECT_GT(each, 0u);
  for (size_t i = 0; i < all.size(); i++)
    results[std::min(i / std::max<size_t>(each, 1), results.size() - 1)].push_back(all[i]);
  return results;
}

void expect_no_difference(EveryResult (*run)(Differs, int), Differs differs, int ranks) {
  EXPECT_EQ(in_child(run, differs, ranks), in_child(run, Differs::none, ranks));
}

class FloatMode : public ::testing::TestWithParam<Differs> {};
INSTANTIATE_TEST_SUITE_P(Threads, FloatMode,
                         ::testing::Values(Differs::calls_of_one_rank,
                                           Differs::threads_of_library));

TEST_P(FloatMode, OfSumsDoesNotCount) {
  for (const int ranks : {2, 3}) expect_no_difference(sums, GetParam(), ranks);
}

// The parameters as a rank gets them, and its sharded gradients.
void reduce_unit(std::vector<uint64_t>* results, Rank& self, const UnitCase& c, fsccl_pool_t pool,
                 const std::function<void(const std::function<void()>&)>& calling) {
  std::unique_ptr<TestUnit> unit;
  calling([&] { unit = std::make_unique<TestUnit>(c, self.comm, pool); });
  const auto keep = [&](const fsccl_view_t& view) {
    results->push_back(hash(view.data, view.count * fsccl_dtype_size(view.dtype)));
  };
  fsccl_view_t view{};
  for (size_t i = 0; i < unit->size(); i++) {
    ASSERT_OK(fsccl_unit_shard(unit->get(), i, &view));
    const std::vector<char> bytes = inputs(view.dtype, view.count, self.rank);
    std::memcpy(view.data, bytes.data(), bytes.size());
  }
  calling([&] { unit->unshard(); });
  for (size_t i = 0; i < unit->size(); i++) {
    ASSERT_OK(fsccl_unit_param(unit->get(), i, &view));
    keep(view);
  }
  unit->reshard();
  for (size_t i = 0; i < unit->size(); i++) {
    ASSERT_OK(fsccl_unit_grad(unit->get(), i, nullptr, &view));
    const std::vector<char> bytes = inputs(view.dtype, view.count, self.rank + self.ranks);
    std::memcpy(view.data, bytes.data(), bytes.size());
  }
  fsccl_reduce_result_t result{};
  fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
  config.result = &result;
  calling([&] { unit->reduce(&config); });
  for (size_t i = 0; i < unit->size(); i++) {
    ASSERT_OK(fsccl_unit_sharded_grad(unit->get(), i, &view));
    keep(view);
  }
  results->push_back(hash(&result.norm_squared, sizeof result.norm_squared));
}

EveryResult units(Differs differs, int ranks) {
  EveryResult results(static_cast<size_t>(ranks));
  run_with(differs, ranks, [&](Rank& self, const auto& calling) {
    const PoolScope pool(self.comm);
    for (const fsccl_dtype_t reduce : {FSCCL_FLOAT32, FSCCL_BFLOAT16, FSCCL_FLOAT16})
      for (const fsccl_codec_kind_t kind : {FSCCL_CODEC_NONE, FSCCL_CODEC_INT8}) {
        UnitCase c = simple_unit({{37, 11}, {5}, {640, 300}});
        c.reduce = reduce;
        for (fsccl_codec_t* const codec : {&c.gather_codec, &c.reduce_codec}) {
          codec->kind = kind;
          codec->scope = FSCCL_CODEC_EVERYWHERE;
        }
        reduce_unit(&results[static_cast<size_t>(self.rank)], self, c, pool.get(), calling);
      }
  });
  return results;
}

TEST_P(FloatMode, OfUnitsDoesNotCount) { expect_no_difference(units, GetParam(), 3); }

}  // namespace
}  // namespace fsccl::testing
