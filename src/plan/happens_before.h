// Which step of which rank is certain to be over before which other one begins, whatever the
// timing: vector clocks over the signals and waits of all plans. And the log of accesses to memory
// that is held against it.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace fsccl {

// A step of a rank, with what its rank knew of the others when it ran.
struct Moment {
  int32_t rank = 0;
  uint32_t step = 0;
  uint32_t epoch = 0;
};

class HappensBefore {
 public:
  HappensBefore(int ranks, int ticks);

  void signal(int rank, uint32_t step, int tick, int peer);
  bool signalled(int rank, int tick, int peer) const {
    return signals_[index(rank, tick, peer)].has_value();
  }
  // `rank` has seen tick `tick` of `peer`, which has signalled it. Several calls between begin_wait
  // and the next step are one moment.
  void begin_wait(int rank);
  void wait(int rank, int peer, int tick);

  Moment now(int rank, uint32_t step) const;
  // Returns true if `rank`, at the end of its last step, has seen `peer` signal tick 0, or has
  // heard of it from a rank that had seen it.
  bool knows_entered(int rank, int peer) const;
  // Returns true if all of `first` is over when `second` begins. A step is not before itself.
  bool before(const Moment& first, const Moment& second) const;

 private:
  size_t index(int rank, int tick, int peer) const {
    return (static_cast<size_t>(rank) * static_cast<size_t>(ticks_) + static_cast<size_t>(tick)) *
               ranks_ +
           static_cast<size_t>(peer);
  }
  size_t ranks_;
  int ticks_;
  // clocks_[r][e * ranks + q]: how many steps of q are over when rank r is in its epoch e. A wait
  // begins an epoch.
  std::vector<std::vector<uint32_t>> clocks_;
  std::vector<std::optional<Moment>> signals_;  // by rank, tick, and receiver
};

struct MemoryAccess {
  uint64_t begin = 0, end = 0;  // bytes
  bool write = false;
  Moment moment;  // the step
  // the step with which it is certain to be over: its own, or another rank's; none: nobody knows
  std::optional<Moment> over;
};

struct Conflict {
  MemoryAccess first, second;
};
// Two accesses of different steps to the same bytes, at least one a write, that are not ordered;
// nothing if there is none. Reorders `accesses`.
std::optional<Conflict> find_conflict(std::vector<MemoryAccess>& accesses,
                                      const HappensBefore& order);

}  // namespace fsccl
