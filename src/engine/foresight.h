// Foresees whether all ranks can touch the buffers of a call, before the call begins. If some rank
// could not touch a buffer of each of the last kEnough calls, the next call need not ask first,
// which would take an exchange (runner.h). It begins with the plan that touches no peer's buffers.
// Its enter signals have the locations of its buffers nevertheless. So if the program changes to
// memory of pools, at most one call takes the slower plan in vain.
//
// All ranks foresee the same. They count the calls of a communicator in their order, and only those
// in which every rank learns of every other rank's buffers before the call ends, so that all ranks
// find the same.
//
// Calls with a root are counted apart. Their plan through slots does not tell a rank of all other
// ranks' buffers, so it would never be found that buffers can be touched again. Such a call takes
// that plan without asking kUnasked times, and then one asks again. So if the program changes to
// memory of pools, at most kUnasked calls take the slower plan in vain. Only calls whose bytes go
// through slots in few rounds are counted, and so lose little. All ranks agree, because they count
// the same calls in the same order, and only a call that asked changes what was found.
#pragma once
#include <cstdint>

namespace fsccl {

class Foresight {
 public:
  bool unreachable() const { return in_a_row_ >= kEnough; }
  void found(bool unreachable) { in_a_row_ = unreachable ? in_a_row_ + (in_a_row_ < kEnough) : 0; }

 private:
  // Programs that use both kinds of memory in turn are faster if they ask.
  static constexpr uint32_t kEnough = 4;
  uint32_t in_a_row_ = 0;
};

class RootedForesight {
 public:
  static constexpr uint32_t kUnasked = 15;

  bool unreachable() const { return asked_.unreachable() && unasked_ < kUnasked; }
  void found(bool unreachable) {
    asked_.found(unreachable);
    unasked_ = 0;
  }
  void did_not_ask() { unasked_++; }

 private:
  Foresight asked_;
  uint32_t unasked_ = 0;  // calls since the last one that asked
};

}  // namespace fsccl
