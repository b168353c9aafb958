// Chooses between stores through the caches and past them for the large calls that share a kept
// call (kept_calls.h), by the time of these calls. Which are faster depends on the processor, on
// the size of the last cache that a virtual machine really has, and on whether the program uses the
// same buffers again. So the calls of the program itself are measured: some with the stores that
// are expected to be faster, some with the others, then the rest with the faster ones. After many
// calls both are tried again, because programs change. The first call with other stores is not
// counted, as it finds the caches as the calls before have left them. The ranks of a communicator
// make the same calls, and if all of them wait, they try the same stores at the same time.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "kernels/kernels.h"

namespace fsccl {

class StoreTrial {
 public:
  explicit StoreTrial(Stores expected) : best_(expected) {}

  // Returns the stores of the next call.
  Stores next() const {
    const uint32_t at = calls_.load(std::memory_order_relaxed);
    const Stores best = best_.load(std::memory_order_relaxed);
    return at >= kEach && at < 2 * kEach ? other(best) : best;
  }
  // Notes the time of a call that had them. Any thread; concurrent calls may miscount a trial.
  void took(int64_t ns) {
    const uint32_t at = calls_.load(std::memory_order_relaxed);
    if (at < 2 * kEach && at % kEach > 0)
      times_[at / kEach][at % kEach - 1].store(ns, std::memory_order_relaxed);
    if (at + 1 == 2 * kEach && others_win())
      best_.store(other(best_.load(std::memory_order_relaxed)), std::memory_order_relaxed);
    calls_.store((at + 1) % kPeriod, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kEach = 4;      // calls of a trial with either stores
  static constexpr uint32_t kPeriod = 256;  // calls from the begin of one trial to the next
  // The other stores win if they take less than this part of the best one's time.
  static constexpr double kWins = 0.97;

  static Stores other(Stores stores) {
    return stores == Stores::cached ? Stores::streaming : Stores::cached;
  }
  // A call may be late because another rank was. So the fastest calls are compared, and the second
  // fastest, but not the slowest.
  bool others_win() const {
    std::array<std::array<double, kEach - 1>, 2> sorted{};
    for (size_t which = 0; which < sorted.size(); which++) {
      for (size_t i = 0; i < sorted[which].size(); i++)
        sorted[which][i] = static_cast<double>(times_[which][i].load(std::memory_order_relaxed));
      std::sort(sorted[which].begin(), sorted[which].end());
    }
    for (size_t i = 0; i + 1 < sorted[0].size(); i++)
      if (sorted[1][i] >= kWins * sorted[0][i]) return false;
    return true;
  }

  std::atomic<uint32_t> calls_{0};
  // The times in ns of the calls with the best stores, and with the others, without the first.
  std::array<std::array<std::atomic<int64_t>, kEach - 1>, 2> times_{};
  std::atomic<Stores> best_;
};

}  // namespace fsccl
