// The happens-before order of the steps of all ranks: it says which step certainly ends before
// which other step begins, whatever the timing. Vector clocks over the signals and waits of all
// plans decide it. find_conflict() searches a log of accesses to memory for two that are not
// ordered.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace fsccl {

// A step of a rank, and the epoch of the rank's clock when it ran.
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
  // Notes that `rank` has seen the signal of `peer` for tick `tick`. begin_wait() must come first.
  // The waits that follow it, up to the next step, are in one epoch.
  void begin_wait(int rank);
  void wait(int rank, int peer, int tick);

  Moment now(int rank, uint32_t step) const;
  // Returns true if `rank`, at the end of its last step, knows that `peer` has signalled tick 0: it
  // has seen the signal, or has seen a signal of a rank that knew.
  bool knows_entered(int rank, int peer) const;
  // Returns true if all of `first` has ended when `second` begins. A step is not before itself.
  bool before(const Moment& first, const Moment& second) const;

 private:
  size_t index(int rank, int tick, int peer) const {
    return (static_cast<size_t>(rank) * static_cast<size_t>(ticks_) + static_cast<size_t>(tick)) *
               ranks_ +
           static_cast<size_t>(peer);
  }
  size_t ranks_;
  int ticks_;
  // clocks_[r][e * ranks + q]: the number of steps of q that have ended when rank r is in its epoch
  // e. A wait begins an epoch.
  std::vector<std::vector<uint32_t>> clocks_;
  std::vector<std::optional<Moment>> signals_;  // by rank, tick, and receiver
};

struct MemoryAccess {
  uint64_t begin = 0, end = 0;  // bytes
  bool write = false;
  Moment moment;  // the step that accesses
  // The step, of this rank or of another one, with which the access certainly ends. No value: no
  // step makes that certain.
  std::optional<Moment> over;
};

struct Conflict {
  MemoryAccess first, second;
};
// Returns two accesses of different steps to the same bytes, at least one a write, that are not
// ordered; nothing if there are none. Reorders `accesses`.
std::optional<Conflict> find_conflict(std::vector<MemoryAccess>& accesses,
                                      const HappensBefore& order);

}  // namespace fsccl
