// Sums that are made apart. The reduction of a unit's gradients is an exchange of signals, after
// which a rank needs no other rank: it sums the contents of the peers' slots, which are guarded
// until every rank has released them (plan/reduce_grads.cpp). If the sums take long, an engine of
// this rank alone makes them. The operation of the communicator's engine is then over when all
// ranks have entered it, and the next operation begins. So ranks still signal in the order of the
// program, and a gather that is issued behind a reduction does not wait for its sums.
//
// Only units' gathers and reductions begin before such sums are there. Every other operation may
// read what the sums write, so it begins after the sums that were submitted before it.
//
// One thread at a time submits (queue.h), and adds reductions. Any thread may ask for them.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "engine/queue.h"

namespace fsccl {

class Engine;

// Units' own operations read nothing that the sums of other reductions write.
inline bool goes_ahead_of_sums(OpCode op) {
  return op == OpCode::unshard || op == OpCode::reduce_grads;
}

class SumsApart {
 public:
  // Returns the engine that makes the sums, or null. It lives longer than this object is used. The
  // load pairs with the store in set_engine().
  Engine* engine() const { return engine_.load(std::memory_order_acquire); }
  // The store pairs with the load in engine(): a reader that sees the engine sees all of it.
  void set_engine(Engine* engine) { engine_.store(engine, std::memory_order_release); }

  // Notes that the operation `number` of the communicator is a reduction. Its sums are the
  // operation `sums` of the other engine, which is submitted next. They give slots back at
  // `position` (0: none).
  void add(uint64_t number, uint64_t sums, uint64_t position) {
    Reduction& to = ring_[sums % Queue::kRing];
    // The stores pair with the loads in sums_of() and in frees(): a reader that sees one of them
    // sees the stores before it, so the place has no number while its other words change.
    to.number.store(0, std::memory_order_release);
    to.sums.store(sums, std::memory_order_release);
    to.position.store(position, std::memory_order_release);
    to.number.store(number, std::memory_order_release);
  }
  // Returns the number of the sums of this operation. 0: it has none, or they are over, because the
  // ring has room for all sums that can be under way.
  uint64_t sums_of(uint64_t number) const {
    // The loads pair with the stores in add(). The number is read again, since the place may have
    // been given to another reduction meanwhile.
    for (const Reduction& each : ring_) {
      if (each.number.load(std::memory_order_acquire) != number) continue;
      const uint64_t sums = each.sums.load(std::memory_order_acquire);
      if (each.number.load(std::memory_order_relaxed) == number) return sums;
    }
    return 0;
  }
  // A rank has released all bytes up to the position `reached`, and an operation waits for
  // `wanted`. Returns the first reduction in between that gives slots back, or 0 if there is none.
  uint64_t frees(uint64_t reached, uint64_t wanted) const {
    uint64_t first = UINT64_MAX, number = 0;
    // The loads pair with the stores in add().
    for (const Reduction& each : ring_) {
      const uint64_t position = each.position.load(std::memory_order_acquire);
      if (position <= reached || position > wanted || position >= first) continue;
      first = position;
      number = each.number.load(std::memory_order_acquire);
    }
    return number;
  }

 private:
  struct Reduction {
    std::atomic<uint64_t> number{0}, sums{0}, position{0};
  };
  std::atomic<Engine*> engine_{nullptr};
  std::array<Reduction, Queue::kRing> ring_;
};

}  // namespace fsccl
