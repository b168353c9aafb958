// The notifications of the ends of operations. Operations of an engine complete in the order of
// their sequence numbers, so the notifications are kept in that order and the engine compares one
// number: the smallest sequence that is watched. A notification is taken out under the lock and
// called without, by exactly one thread. Only to add one takes memory: who was promised a call gets
// it.
#pragma once
#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>

#include "base/fd.h"
#include "fsccl/fsccl.h"

namespace fsccl {

// Either a function to call or an eventfd to make readable.
struct Notification {
  void (*done)(void* context, fsccl_status_t status) = nullptr;
  void* context = nullptr;
  Fd event{};
};

class Notifications {
 public:
  // Somebody watches an operation up to this sequence number. Relaxed: whoever adds one makes sure
  // that somebody looks again.
  bool due(uint64_t completed) const { return next_.load(std::memory_order_relaxed) <= completed; }
  void add(uint64_t sequence, Notification notification);
  // From now on all that are there are due; false when there is none.
  bool all_due();
  // Notifies those up to `completed` of FSCCL_OK and, when `failure` is an error, all others of
  // that.
  void notify(uint64_t completed, fsccl_status_t failure);

  // Notifies at once; but a function that becomes due inside another one's call runs in this thread
  // when that has returned, so that a chain of them needs no stack.
  static void call(Notification notification, fsccl_status_t status);
  static bool calling();  // this thread is inside a notification's function

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  struct Pending {
    uint64_t sequence = 0;
    Notification notification;
    fsccl_status_t status = FSCCL_OK;
  };
  static void call(std::list<Pending>&& due);

  std::atomic<uint64_t> next_{kNone};
  std::mutex mutex_;
  std::list<Pending> list_;  // by sequence
};

}  // namespace fsccl
