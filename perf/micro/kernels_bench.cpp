// Measures the kernels with cached and with streaming stores, in GB/s (read + written), for several
// working sets (the bytes of everything read and written). A small set stays in a cache from one
// iteration to the next; a large one comes from memory. The small_* benchmarks measure the overhead
// of a call. For checksums only the read bytes count.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/crc32c.h"
#include "kernels/kernels.h"

namespace {

using namespace fsccl;

// Aligned memory whose pages have been touched. The system chooses the size of the pages.
class Memory {
 public:
  explicit Memory(size_t bytes)
      : bytes_(bytes),
        at_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (at_ == MAP_FAILED) std::abort();
    std::memset(at_, 0, bytes);
  }
  ~Memory() { munmap(at_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* at() const { return at_; }

 private:
  size_t bytes_;
  void* at_;
};

Stores stores_of(const benchmark::State& state) {
  return state.range(1) != 0 ? Stores::streaming : Stores::cached;
}

void report(benchmark::State& state, size_t bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(bytes) * state.iterations());
  state.SetLabel(state.range(1) != 0 ? "streaming" : "cached");
}

void copy(benchmark::State& state) {
  const size_t bytes = static_cast<size_t>(state.range(0)) / 2;
  const Memory from(bytes), to(bytes);
  for (auto _ : state) copy_bytes(to.at(), from.at(), bytes, stores_of(state));
  report(state, 2 * bytes);
}

// Copies to a place 16 bytes behind the beginning of a page, where large blocks of malloc begin.
void copy_to_block(benchmark::State& state) {
  const size_t bytes = static_cast<size_t>(state.range(0)) / 2;
  const Memory from(bytes), to(bytes + 16);
  for (auto _ : state)
    copy_bytes(static_cast<char*>(to.at()) + 16, from.at(), bytes, stores_of(state));
  report(state, 2 * bytes);
}

template <uint32_t (*kSum)(const void*, size_t, uint32_t)>
void checksum(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const Memory from(bytes);
  for (auto _ : state) benchmark::DoNotOptimize(kSum(from.at(), bytes, 0));
  state.SetBytesProcessed(state.range(0) * state.iterations());
}

template <int kFrom, int kTo>
void cast_types(benchmark::State& state) {
  constexpr auto from_type = static_cast<fsccl_dtype_t>(kFrom),
                 to_type = static_cast<fsccl_dtype_t>(kTo);
  constexpr size_t kBytes = dtype_size(from_type) + dtype_size(to_type);
  const size_t count = static_cast<size_t>(state.range(0)) / kBytes;
  const Memory from(count * dtype_size(from_type)), to(count * dtype_size(to_type));
  for (auto _ : state) cast(to.at(), to_type, from.at(), from_type, count, stores_of(state));
  report(state, count * kBytes);
}

enum Epilogue { kPlain, kNorm, kAccumulate, kAverage };

template <int kFrom, int kTo, int kSources, Epilogue kEpilogue>
void sum(benchmark::State& state) {
  constexpr auto from_type = static_cast<fsccl_dtype_t>(kFrom),
                 to_type = static_cast<fsccl_dtype_t>(kTo);
  constexpr size_t kBytes =
      kSources * dtype_size(from_type) + dtype_size(to_type) * (kEpilogue == kAccumulate ? 2 : 1);
  const size_t count = static_cast<size_t>(state.range(0)) / kBytes,
               piece = count * dtype_size(from_type) / 64 * 64 + 64;
  const Memory from(kSources * piece), to(count * dtype_size(to_type));
  std::vector<const void*> sources;
  for (size_t s = 0; s < kSources; ++s)
    sources.push_back(static_cast<const char*>(from.at()) + s * piece);
  Norm norm;
  Reduce args{.sources = sources.data(),
              .n = kSources,
              .from = from_type,
              .dst = to.at(),
              .to = to_type,
              .count = count};
  args.scale = kEpilogue == kAverage ? 1 : 0.5;
  args.divisor = kEpilogue == kAverage ? 3 : 1;  // a real division, as 3 is no power of two
  args.accumulate = kEpilogue == kAccumulate;
  args.norm = kEpilogue == kNorm ? &norm : nullptr;
  args.stores = stores_of(state);
  for (auto _ : state) reduce(args);
  benchmark::DoNotOptimize(norm);
  report(state, count * kBytes);
}

void sizes(benchmark::internal::Benchmark* b) {
  for (const int64_t bytes : {64 << 10, 4 << 20, 64 << 20, 256 << 20})
    b->Args({bytes, 0})->Args({bytes, 1});
}
void small_sizes(benchmark::internal::Benchmark* b) {
  for (const int64_t bytes : {24, 96, 384, 3072}) b->Args({bytes, 0});
}

constexpr int kFp16 = FSCCL_FLOAT16, kBf16 = FSCCL_BFLOAT16, kFp32 = FSCCL_FLOAT32,
              kFp64 = FSCCL_FLOAT64;

BENCHMARK(copy)->Apply(sizes);
BENCHMARK(copy_to_block)->Apply(sizes);
BENCHMARK(checksum<crc32c>)->Name("crc32c")->Arg(24)->Arg(4 << 10)->Arg(64 << 10)->Arg(16 << 20);
BENCHMARK(checksum<crc32c_portable>)->Name("crc32c_by_tables")->Arg(64 << 10);
BENCHMARK(cast_types<kFp32, kBf16>)->Name("cast_fp32_bf16")->Apply(sizes);
BENCHMARK(cast_types<kFp32, kFp16>)->Name("cast_fp32_fp16")->Apply(sizes);
BENCHMARK(cast_types<kBf16, kFp32>)->Name("cast_bf16_fp32")->Apply(sizes);
BENCHMARK(sum<kBf16, kFp32, 2, kPlain>)->Name("sum_2_bf16_fp32")->Apply(sizes);
BENCHMARK(sum<kBf16, kFp32, 2, kNorm>)->Name("sum_2_bf16_fp32_norm")->Apply(sizes);
BENCHMARK(sum<kFp16, kFp32, 2, kNorm>)->Name("sum_2_fp16_fp32_norm")->Apply(sizes);
BENCHMARK(sum<kBf16, kBf16, 2, kPlain>)->Name("sum_2_bf16_bf16")->Apply(sizes);
BENCHMARK(sum<kFp32, kFp32, 2, kPlain>)->Name("sum_2_fp32_fp32")->Apply(sizes);
BENCHMARK(sum<kFp32, kFp32, 3, kPlain>)->Name("sum_3_fp32_fp32")->Apply(sizes);
BENCHMARK(sum<kFp32, kFp32, 3, kAverage>)->Name("average_3_fp32_fp32")->Apply(sizes);
BENCHMARK(sum<kBf16, kFp32, 3, kPlain>)->Name("sum_3_bf16_fp32")->Apply(sizes);
BENCHMARK(sum<kBf16, kFp32, 3, kAverage>)->Name("average_3_bf16_fp32")->Apply(sizes);
BENCHMARK(sum<kFp64, kFp64, 3, kPlain>)->Name("sum_3_fp64_fp64")->Apply(sizes);
BENCHMARK(sum<kFp64, kFp64, 3, kAverage>)->Name("average_3_fp64_fp64")->Apply(sizes);
BENCHMARK(sum<kFp32, kFp32, 4, kPlain>)->Name("sum_4_fp32_fp32")->Apply(sizes);
BENCHMARK(sum<kFp32, kFp32, 8, kPlain>)->Name("sum_8_fp32_fp32")->Apply(sizes);
BENCHMARK(sum<kFp64, kFp64, 2, kPlain>)->Name("sum_2_fp64_fp64")->Apply(sizes);
BENCHMARK(sum<kBf16, kFp32, 2, kAccumulate>)->Name("sum_2_bf16_fp32_accumulate")->Apply(sizes);
BENCHMARK(sum<kFp32, kFp32, 1, kAccumulate>)->Name("sum_1_fp32_accumulate")->Apply(sizes);
BENCHMARK(sum<kFp32, kFp32, 2, kPlain>)->Name("small_sum_2_fp32_fp32")->Apply(small_sizes);
BENCHMARK(sum<kFp32, kFp32, 3, kPlain>)->Name("small_sum_3_fp32_fp32")->Apply(small_sizes);
BENCHMARK(sum<kFp32, kFp32, 3, kAverage>)->Name("small_average_3_fp32_fp32")->Apply(small_sizes);
BENCHMARK(sum<kBf16, kFp32, 2, kNorm>)->Name("small_sum_2_bf16_fp32_norm")->Apply(small_sizes);
BENCHMARK(copy)->Name("small_copy")->Apply(small_sizes);

}  // namespace

BENCHMARK_MAIN();
