// The time that the library uses: a monotonic clock, which a simulation can replace, and the
// Deadline that every wait has.
#pragma once
#include <cstdint>
#include <limits>

namespace fsccl {

// Returns the time of CLOCK_MONOTONIC in nanoseconds.
int64_t now_ns();

// A moment after which a wait fails. The object has 8 bytes and can be copied.
class Deadline {
 public:
  static Deadline never() { return Deadline(std::numeric_limits<int64_t>::max()); }
  static Deadline at(int64_t ns) { return Deadline(ns); }
  static Deadline in_ms(int64_t ms) {
    return ms < 0 || ms > std::numeric_limits<int64_t>::max() / 2'000'000
               ? never()
               : Deadline(now_ns() + ms * 1'000'000);
  }
  bool passed() const { return now_ns() >= at_ns_; }
  int64_t at_ns() const { return at_ns_; }
  // Returns the nanoseconds that are left: at least 0, and at most `cap`.
  int64_t left_ns(int64_t cap = std::numeric_limits<int64_t>::max()) const {
    if (at_ns_ == std::numeric_limits<int64_t>::max()) return cap;
    const int64_t left = at_ns_ - now_ns();
    return left < 0 ? 0 : left < cap ? left : cap;
  }

 private:
  explicit Deadline(int64_t ns) : at_ns_(ns) {}
  int64_t at_ns_;
};

}  // namespace fsccl
