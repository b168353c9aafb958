// Knowledge that all ranks have before a call begins of where its buffers lie: whether, as in the
// last calls, one of them is memory that not every rank can touch. Then a call need not ask first,
// which takes an exchange (runner.h): it begins with the plan that touches no peer's buffers, and
// its enter signals say where they are all the same, so that one call in vain is the most it costs
// when a program goes over to memory of pools.
//
// Ranks foresee alike: what is counted are the calls of a communicator in their order, of those
// alone in which every rank hears from every other one before its call ends, and so finds what all
// others find.
#pragma once
#include <cstdint>

namespace fsccl {

class Foresight {
 public:
  bool unreachable() const { return in_a_row_ >= kEnough; }
  void found(bool unreachable) { in_a_row_ = unreachable ? in_a_row_ + (in_a_row_ < kEnough) : 0; }

 private:
  // programs that use both kinds of memory in turn are better off asking
  static constexpr uint32_t kEnough = 4;
  uint32_t in_a_row_ = 0;
};

}  // namespace fsccl
