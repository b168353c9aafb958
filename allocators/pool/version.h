// What one writer changes at any time and others copy without stopping it (a seqlock). The version is odd while the writer is at
// work; a copy that was begun at an even version, and ends at the same one, is of one moment.
//
// Invariant: what lies under a version is atomic, stored with `release` between begin() and end(), and loaded with `acquire`: a
// reader that sees a new value then sees the odd version as well, without a fence. Writers exclude each other by other means.
#pragma once
#include <sched.h>

#include <atomic>
#include <cstdint>

namespace fsccl {

class Version {
 public:
  void begin() { value_.store(value_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  void end() { value_.store(value_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

  // Calls read(), which copies, until a copy is of one moment. It may take as long as the writer goes on without a pause.
  template <class Read>
  void read(Read&& read) const {
    for (;; sched_yield()) {
      const uint64_t before = value_.load(std::memory_order_acquire);
      if (before % 2) continue;
      read();
      if (value_.load(std::memory_order_relaxed) == before) return;
    }
  }

 private:
  std::atomic<uint64_t> value_{0};
};

// A number under a version.
class Versioned {
 public:
  Versioned(uint64_t value = 0) : value_(value) {}  // NOLINT(google-explicit-constructor)
  Versioned& operator=(uint64_t value) {
    value_.store(value, std::memory_order_release);
    return *this;
  }
  Versioned(const Versioned&) = delete;
  Versioned& operator=(const Versioned& other) { return *this = uint64_t{other}; }
  operator uint64_t() const { return value_.load(std::memory_order_acquire); }  // NOLINT(google-explicit-constructor)
  Versioned& operator+=(uint64_t more) { return *this = *this + more; }
  Versioned& operator-=(uint64_t less) { return *this = *this - less; }

 private:
  std::atomic<uint64_t> value_;
};

}  // namespace fsccl
