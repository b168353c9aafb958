// Decides whether a waiting thread may yield. A yield lets a peer run that shares the core. If it
// gives the core to a thread that computes, it takes a time slice of the scheduler, and the waiting
// thread comes late for its peer's signal. The thread then rests from yields and sleeps instead,
// because a sleeper is back soon after the signal. A first long yield says little, because it may
// be a peer that prepares its call, so the rests are short at first. They grow while every return
// to yields ends in a long one.
#pragma once
#include <algorithm>
#include <cstdint>

namespace fsccl {

class YieldRest {
 public:
  bool over(int64_t now_ns) const { return now_ns >= until_ns_; }
  // Notes a yield that ended at this time.
  void yielded(int64_t took_ns, int64_t now_ns) {
    if (took_ns <= kLongNs) return;
    // Yields that were short for as long as the last rest say that the core is the peers' again.
    const bool again = now_ns - took_ns < until_ns_ + rest_ns_;
    rest_ns_ = again ? std::min(2 * rest_ns_, kLongestNs) : kShortestNs;
    until_ns_ = now_ns + rest_ns_;
  }

 private:
  // This is longer than most work of peers, and shorter than a time slice of the scheduler.
  static constexpr int64_t kLongNs = 2'500'000;
  static constexpr int64_t kShortestNs = 1'000'000, kLongestNs = 32'000'000;

  int64_t until_ns_ = 0, rest_ns_ = 0;
};

}  // namespace fsccl
