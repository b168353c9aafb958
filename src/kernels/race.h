// In a race, variants of a pass are measured against the default variant, in three repeats. In each
// repeat the variants take turns, sample by sample. A variant can win only if it is faster than the
// default by more than 3 % in every repeat, so that noise favours the default. If several variants
// are, the fastest of them wins.
#pragma once
#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kernels/variants.h"

namespace fsccl {

inline constexpr size_t kRepeats = 3;
inline constexpr double kWinningRatio = 0.97;

struct Heat {
  Chosen chosen;
  std::array<double, kRepeats> ns_per_kib{};  // a KiB read or written; one time for each repeat

  double middle() const;
};

struct Race {
  Pass pass{};
  std::vector<Heat> heats;  // the default first
  size_t winner = 0;        // its place in `heats`
};

size_t winner_of(std::span<const Heat> heats);

// Takes one sample of a pass by a variant, and returns the ns for each KiB read or written.
using Sample = std::function<double(Pass, Chosen)>;

// Races `contenders`, the default first, with `samples` samples of each in each repeat; the lower
// quartile stands for a repeat. Returns nothing if `out_of_time()` becomes true before the end.
std::optional<Race> race(Pass pass, std::span<const Chosen> contenders, size_t samples,
                         const Sample& sample, const std::function<bool()>& out_of_time);

// The memory on which samples are taken. Hot passes go over one piece again and again. The passes
// `_past` go over piece after piece, and each piece is flushed out of every cache before. Without
// the flush, a large last-level cache could hold the whole course, and a variant that wins inside a
// cache loses outside of it.
class Course {
 public:
  // Allocates and touches `bytes` of sources and as many of destinations. If the system does not
  // give the memory, valid() is false.
  Course(size_t bytes, size_t piece_bytes);
  ~Course();
  Course(const Course&) = delete;
  Course& operator=(const Course&) = delete;

  bool valid() const { return memory_ != nullptr; }
  // Returns whether this processor lets a process flush its caches. If it does not, the course must
  // be larger than the last cache.
  static bool flushes();
  double sample(Pass pass, Chosen chosen);

 private:
  double run(Pass pass, Chosen chosen, size_t at, size_t piece) const;  // bytes moved

  size_t bytes_, piece_bytes_, turn_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace fsccl
