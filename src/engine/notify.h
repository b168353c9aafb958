// The notifications of the ends of operations. Operations of an engine complete in the order of
// their sequence numbers, so the notifications are kept in that order and the engine compares one
// number: the smallest sequence that is watched. A notification is taken out under the lock and
// number: the smallest sequence that is watched. A notification is taken out under the lock and
// called without it, by exactly one thread. Only adding a notification allocates memory, so one
// that was added is always called.
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
  // Returns true if a notification is due. The load is relaxed, because a thread that adds a
  // notification makes sure that some thread looks again.
  bool due(uint64_t completed) const { return next_.load(std::memory_order_relaxed) <= completed; }
  void add(uint64_t sequence, Notification notification);
  // Makes all present notifications due. Returns false if there are none.
  bool all_due();
  // Notifies those up to `completed` of FSCCL_OK. If `failure` is an error, notifies all others of
  // it.
  void notify(uint64_t completed, fsccl_status_t failure);

  // Notifies at once. A function that becomes due inside the call of another one runs in this
  // thread after that one has returned, so that a chain of them needs no stack.
  static void call(Notification notification, fsccl_status_t status);
  static bool calling();  // true if this thread is inside a notification's function

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
