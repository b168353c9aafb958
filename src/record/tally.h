// The counters of an engine: one thread at a time raises them, and any thread reads them at any
// time.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "fsccl/fsccl.h"
#include "fsccl/insight.h"
#include "plan/fingerprint.h"

namespace fsccl {

class Tally {
 public:
  void completed(OpCode op) { raise(completed_[static_cast<size_t>(op) % kKinds], 1); }
  void moved(uint64_t bytes_read, uint64_t bytes_written) {
    raise(bytes_read_, bytes_read);
    raise(bytes_written_, bytes_written);
  }
  void kernel_copied() { raise(kernel_copies_, 1); }
  void slept(int64_t ns) {
    raise(sleeps_, 1);
    raise(slept_ns_, static_cast<uint64_t>(ns));
  }

  fsccl_counters_t counters() const {
    fsccl_counters_t made = FSCCL_COUNTERS_INIT;
    for (const auto& kind : completed_) made.operations += kind.load(std::memory_order_relaxed);
    made.bytes_read = bytes_read_.load(std::memory_order_relaxed);
    made.bytes_written = bytes_written_.load(std::memory_order_relaxed);
    made.kernel_copies = kernel_copies_.load(std::memory_order_relaxed);
    made.sleeps = sleeps_.load(std::memory_order_relaxed);
    return made;
  }
  uint64_t slept_ns() const { return slept_ns_.load(std::memory_order_relaxed); }
  // Calls visit(kind, count) for each kind of which an operation has completed.
  template <class Visit>
  void each_kind(Visit visit) const {
    for (size_t op = 0; op < kKinds; op++)
      if (const uint64_t count = completed_[op].load(std::memory_order_relaxed))
        visit(static_cast<OpCode>(op), count);
  }

 private:
  using Number = std::atomic<uint64_t>;
  static constexpr size_t kKinds = 64;
  static void raise(Number& number, uint64_t by) {  // no bus lock: one thread at a time
    number.store(number.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }

  std::array<Number, kKinds> completed_{};
  Number bytes_read_{0}, bytes_written_{0}, kernel_copies_{0}, sleeps_{0}, slept_ns_{0};
};

}  // namespace fsccl
