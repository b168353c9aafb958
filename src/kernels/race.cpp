#include "kernels/race.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fsccl {
namespace {

// The pieces of hot passes fit the core's second-level cache but not its first, like most data that
// collectives move.
constexpr size_t kHotBytes = 64u << 10;
constexpr int kHotRuns = 16;

void flush([[maybe_unused]] const std::byte* from, [[maybe_unused]] size_t bytes) {
#if defined(__x86_64__)
  if (!Course::flushes()) return;
  for (size_t at = 0; at < bytes; at += 64)
    asm volatile("clflushopt (%0)" : : "r"(from + at) : "memory");
  asm volatile("sfence" : : : "memory");
#endif
}

bool is_past(Pass pass) { return static_cast<unsigned>(pass) % 2 == 1; }

}  // namespace

double Heat::middle() const {
  std::array<double, kRepeats> sorted = ns_per_kib;
  std::sort(sorted.begin(), sorted.end());
  return sorted[kRepeats / 2];
}

size_t winner_of(std::span<const Heat> heats) {
  size_t winner = 0;
  for (size_t i = 1; i < heats.size(); i++) {
    bool wins = true;
    for (size_t repeat = 0; repeat < kRepeats; repeat++)
      wins = wins && heats[i].ns_per_kib[repeat] < kWinningRatio * heats[0].ns_per_kib[repeat];
    if (wins && heats[i].middle() < heats[winner].middle()) winner = i;
  }
  return winner;
}

std::optional<Race> race(Pass pass, std::span<const Chosen> contenders, size_t samples,
                         const Sample& sample, const std::function<bool()>& out_of_time) {
  Race made{pass, {}, 0};
  for (const Chosen chosen : contenders) {
    made.heats.push_back({chosen});
    (void)sample(pass, chosen);  // warms up code and address translations
  }
  std::vector<std::vector<double>> taken(contenders.size());
  for (size_t repeat = 0; repeat < kRepeats; repeat++) {
    for (auto& of_one : taken) of_one.clear();
    for (size_t i = 0; i < samples; i++) {
      // The contenders take turns in beginning a round, so none always follows the same one.
      for (size_t k = 0; k < contenders.size(); k++) {
        if (out_of_time()) return std::nullopt;
        const size_t who = (k + i) % contenders.size();
        taken[who].push_back(sample(pass, contenders[who]));
      }
    }
    for (size_t who = 0; who < contenders.size(); who++) {
      std::vector<double>& times = taken[who];
      const auto quartile = times.begin() + static_cast<ptrdiff_t>(times.size() / 4);
      std::nth_element(times.begin(), quartile, times.end());
      made.heats[who].ns_per_kib[repeat] = *quartile;
    }
  }
  made.winner = winner_of(made.heats);
  return made;
}

Course::Course(size_t bytes, size_t piece_bytes) : bytes_(bytes), piece_bytes_(piece_bytes) {
  void* const at =
      ::mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return;
  memory_ = static_cast<std::byte*>(at);
  std::memset(memory_, 0x3f, 2 * bytes);  // ordinary values in each type of float
}

bool Course::flushes() {
#if defined(__x86_64__)
  static const bool can_flush = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 23 & 1) != 0;
  }();
  return can_flush;
#else
  return false;
#endif
}

Course::~Course() {
  if (memory_ != nullptr) (void)::munmap(memory_, 2 * bytes_);
}

double Course::run(Pass pass, Chosen chosen, size_t at, size_t piece) const {
  std::byte* const dst = memory_ + bytes_ + at;
  const std::byte* const src = memory_ + at;
  const auto moved = [&](size_t written) { return static_cast<double>(piece + written); };
  if (pass == Pass::copy || pass == Pass::copy_past) {
    copy_as(chosen, dst, src, piece);
    return moved(piece);
  }
  if (pass == Pass::cast || pass == Pass::cast_past) {
    cast_as(chosen, dst, FSCCL_BFLOAT16, src, FSCCL_FLOAT32, piece / sizeof(float));
    return moved(piece / 2);
  }
  // The reduce has two sources: fp32 without norm, as in collectives, or bf16 with norm, as in
  // units.
  const bool with_norm = pass == Pass::reduce_norm || pass == Pass::reduce_norm_past;
  const void* const sources[] = {src, src + piece / 2};
  Norm norm;
  Reduce args{.sources = sources, .n = 2, .dst = dst, .to = FSCCL_FLOAT32};
  args.from = with_norm ? FSCCL_BFLOAT16 : FSCCL_FLOAT32;
  args.count = piece / 2 / (with_norm ? sizeof(uint16_t) : sizeof(float));
  args.norm = with_norm ? &norm : nullptr;
  reduce_as(chosen, args);
  return moved(args.count * sizeof(float));
}

double Course::sample(Pass pass, Chosen chosen) {
  const size_t pieces = bytes_ / piece_bytes_;
  const bool past = is_past(pass);
  const size_t at = past ? turn_++ % pieces * piece_bytes_ : 0;
  double bytes = 0;
  if (past) {
    flush(memory_ + at, piece_bytes_);
    flush(memory_ + bytes_ + at, piece_bytes_);
  } else {
    (void)run(pass, chosen, at, kHotBytes);
  }
  const int64_t begin = now_ns();
  for (int i = 0; i < (past ? 1 : kHotRuns); i++)
    bytes += run(pass, chosen, at, past ? piece_bytes_ : kHotBytes);
  return static_cast<double>(now_ns() - begin) * 1024 / bytes;
}

}  // namespace fsccl
