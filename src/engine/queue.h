// The queue of an engine is a ring of operations, which run one after the other in the order of
// their sequence numbers. Two counters delimit the operations under way: `tail_` is the number of
// operations that were submitted, and `done_` the number of those that completed.
//
// One thread at a time submits, because the API requires this. The submitter alone writes `tail_`.
// Any thread may drive, which means to run operations, but only one at a time: the driver is the
// thread that has set the flag `driving_`. The driver alone writes `done_`.
//
// There is one exception. If the ring is empty and the flag is clear, the submitter runs a small
// call (small_call.h) and then advances both counters without setting the flag, because setting it
// is a locked instruction, which waits until the core has drained its store buffer. Another thread
// may set the flag meanwhile. It finds an empty ring and does nothing: the small call advances
// `done_` before `tail_`, and under_way() reads `tail_` before `done_`, so no reader ever sees
// `tail_` ahead of `done_`.
#pragma once
#include <array>
#include <atomic>

#include "base/invariant.h"
#include "engine/notify.h"
#include "engine/operation.h"

namespace fsccl {

class Queue {
 public:
  static constexpr uint64_t kRing = 64;

  explicit Queue(InvariantGuard& guard) : guard_(guard) {}
  Queue(const Queue&) = delete;

  uint64_t submitted() const { return tail_.load(std::memory_order_relaxed); }
  // The acquire of reached() pairs with the release in complete(): a reader that sees that an
  // operation is complete sees what it did.
  uint64_t completed() const { return done_.reached(); }
  uint64_t under_way() const {
    // This load pairs with the release in submit(): a reader that sees an operation sees what its
    // submitter wrote to it.
    const uint64_t tail = tail_.load(std::memory_order_acquire), done = completed();
    return tail > done ? tail - done : 0;
  }
  // Returns true if nothing is under way and no thread drives. Only the submitter calls this.
  bool idle() const {
    // This load pairs with the release in leave().
    return done_.reached() == tail_.load(std::memory_order_relaxed) &&
           !driving_.load(std::memory_order_acquire);
  }
  const Milestone* milestone() const { return &done_; }

  // Returns the place of an operation that the submitter is about to fill. The ring must have room.
  Operation& place(uint64_t sequence, const OperationSettings& settings,
                   const Fingerprint& fingerprint) {
    FSCCL_INVARIANT(guard_, sequence - completed() <= kRing);
    Operation& op = ring_[sequence % kRing];
    static_cast<OperationSettings&>(op) = settings;
    static_cast<Cursor&>(op) = {};
    op.fingerprint = fingerprint;
    op.fingerprint.sequence = sequence;
    op.bindings = op.inline_bindings.data();
    op.begun = false;
    op.deadline_ns = 0;
    return op;
  }
  // Lets the operation be driven from now on. With `seen` all threads see this store before the
  // later loads of this thread.
  enum class Order : uint8_t { release, seen };
  void submit(uint64_t sequence, Order order) {
    FSCCL_INVARIANT(guard_, sequence == submitted() + 1);
    if (order == Order::seen)
      tail_.store(sequence, std::memory_order_seq_cst);
    else
      // This store pairs with the load in under_way().
      tail_.store(sequence, std::memory_order_release);
  }

  // Returns the operation that runs next, or is running.
  Operation& head() { return ring_[(completed() + 1) % kRing]; }
  // Ends the operation at the head and returns its number. Only the driver calls this.
  uint64_t complete() {
    const uint64_t number = completed() + 1;
    done_.reach(number);
    return number;
  }

  // Makes this thread the driver, if there is none. The acquire pairs with the release in leave().
  bool try_drive() {
    return !driving_.load(std::memory_order_relaxed) &&
           !driving_.exchange(true, std::memory_order_acquire);
  }
  // The load pairs with the release in leave().
  bool driven() const { return driving_.load(std::memory_order_acquire); }
  // The release pairs with the acquires in try_drive(), driven() and idle().
  void leave() { driving_.store(false, std::memory_order_release); }
  // A thread that finds another one driving and goes away leaves a note. The driver takes the note
  // when it leaves. If the two race, the note may be missed. The next visit of the service thread,
  // at most 10 ms later, then moves the operations on.
  void note_missed() { missed_.store(true, std::memory_order_relaxed); }
  bool take_missed() {
    if (!missed_.load(std::memory_order_relaxed)) [[likely]]
      return false;
    missed_.store(false, std::memory_order_relaxed);
    return true;
  }

  Notifications notifications;

 private:
  InvariantGuard& guard_;
  alignas(64) std::atomic<bool> driving_{false};
  std::atomic<bool> missed_{false};
  Milestone done_;                             // operations completed
  alignas(64) std::atomic<uint64_t> tail_{0};  // operations submitted
  std::array<Operation, kRing> ring_;
};

}  // namespace fsccl
