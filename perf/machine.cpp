#include "machine.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "buffer.h"
#include "numbers.h"

namespace fsccl::perf {
namespace {

constexpr int kSamples = 7;
constexpr double kSampleUs = 200;  // the least time of a sample

// Keeps the compiler from dropping the computation of a value that is not used.
void keep(uint64_t value) { asm volatile("" : : "r"(value) : "memory"); }

#if defined(__x86_64__)
// Sums words by loads of 16 aligned bytes. Four loads in flight suffice to keep the memory path of
// a core busy, so wider loads would not be faster.
uint64_t sum_words(const char* data, uint64_t bytes) {
  const auto* words = reinterpret_cast<const __m128i*>(data);
  __m128i sums[4] = {};
  for (uint64_t i = 0; i + 4 <= bytes / 16; i += 4)
    for (uint64_t k = 0; k < 4; k++)
      sums[k] = _mm_add_epi64(sums[k], _mm_load_si128(words + i + k));
  const __m128i sum =
      _mm_add_epi64(_mm_add_epi64(sums[0], sums[1]), _mm_add_epi64(sums[2], sums[3]));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_add_epi64(sum, _mm_unpackhi_epi64(sum, sum))));
}

void copy_past_caches(char* to, const char* from, uint64_t bytes) {
  auto* out = reinterpret_cast<__m128i*>(to);
  const auto* in = reinterpret_cast<const __m128i*>(from);
  for (uint64_t i = 0; i + 4 <= bytes / 16; i += 4)
    for (uint64_t k = 0; k < 4; k++) _mm_stream_si128(out + i + k, _mm_load_si128(in + i + k));
  _mm_sfence();
}
#else
uint64_t sum_words(const char* data, uint64_t bytes) {
  uint64_t sum = 0;
  for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, 8);
    sum += word;
  }
  return sum;
}

void copy_past_caches(char* to, const char* from, uint64_t bytes) { std::memcpy(to, from, bytes); }
#endif

double rate(const Session& session, uint64_t bytes, const std::function<void()>& pass) {
  const double start = now_us();
  pass();
  const double once = std::max(0.05, session.max_over_ranks({now_us() - start})[0]);
  const int passes = static_cast<int>(std::clamp(std::ceil(kSampleUs / once), 1.0, 10'000.0));
  std::vector<double> times;
  for (int i = 0; i < kSamples; i++) {
    session.barrier();
    const double begin = now_us();
    for (int k = 0; k < passes; k++) pass();
    times.push_back((now_us() - begin) / passes);
    session.barrier();
  }
  return static_cast<double>(bytes) * session.ranks() /
         percentile(session.max_over_ranks(times), 0) * 1e-3;
}

}  // namespace

std::string limit_left_out(uint64_t bytes) {
  return fmt::format(
      "the limit of the machine at {}: two buffers of this size for each rank do not fit in what a "
      "host has available",
      format_bytes(bytes));
}

std::optional<MachineLimit> measure_limit(const Session& session, uint64_t bytes) {
  if (session.missing_bytes(2 * bytes * static_cast<uint64_t>(session.ranks()) /
                            static_cast<uint64_t>(session.hosts())) > 0)
    return std::nullopt;
  const Buffer from(session, Memory::kCaller, bytes), to(session, Memory::kCaller, bytes);
  MachineLimit limit{bytes, 0, 0};
  const double cached = rate(session, bytes, [&] {
    std::memcpy(to.at(0), from.at(0), bytes);
    keep(reinterpret_cast<uintptr_t>(to.at(0)));
  });
  limit.copy_gb_per_s = std::max(
      cached, rate(session, bytes, [&] { copy_past_caches(to.at(0), from.at(0), bytes); }));
  limit.read_gb_per_s = rate(session, bytes, [&] { keep(sum_words(from.at(0), bytes)); });
  return limit;
}

}  // namespace fsccl::perf
