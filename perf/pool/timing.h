// Measures the time of an allocation and its release over batches, because reading the clock costs
// as much as either.
#pragma once
#include <chrono>
#include <cstddef>
#include <vector>

#include "allocators/placement/step_schedule.h"

namespace fsccl::perf {

// Returns the least multiple of `steps` that is not below `at_least`: all steps run equally often,
// because a step may free blocks that the one before has left.
constexpr size_t whole_rounds(size_t steps, size_t at_least) {
  return (at_least + steps - 1) / steps * steps;
}

class BatchTimes {
 public:
  // Applies the events in order. Returns false as soon as one fails.
  template <typename Apply>
  bool run(const std::vector<StepEvent>& events, Apply&& apply) {
    size_t at = 0;
    while (at < events.size()) {
      size_t moves = 0;
      const auto start = std::chrono::steady_clock::now();
      for (; at < events.size() && moves < kBatch; ++at) {
        moves += events[at].moves_slot();
        if (!apply(events[at])) return false;
      }
      const std::chrono::duration<double, std::nano> time =
          std::chrono::steady_clock::now() - start;
      if (moves == kBatch) samples_.push_back(time.count() / (static_cast<double>(kBatch) / 2));
    }
    return true;
  }
  // Returns the times of an allocation and its release; each is the mean of a batch.
  const std::vector<double>& samples_ns() const { return samples_; }
  void clear() { samples_.clear(); }

 private:
  static constexpr size_t kBatch = 64;
  std::vector<double> samples_;
};

}  // namespace fsccl::perf
