// The one way in which the library waits. A wait has a condition, a deadline, and a reason for
// which it ends without the condition: the communicator has failed, somebody has aborted it, or the
// rank that would make the condition true is gone. wait_until() takes all three, so a loop that
// looks at the condition alone cannot be written by accident; tools/checks/waits.py refuses every
// other call that sleeps or yields. A pause says how the thread spends the time between two looks.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>

#include "base/clock.h"
#include "base/status.h"
#include "base/threads.h"

namespace fsccl {

enum class WaitEnd : uint8_t {
  held,    // the condition holds
  broken,  // the condition does not hold, and there is a reason not to wait for it any longer
  late,    // neither, and the deadline has passed
};

// The longest time for which a pause is asked to last; it keeps deadlines that never pass out of
// the arithmetic of system calls.
inline constexpr int64_t kLongestWaitNs = int64_t{3600} * 1'000'000'000;

// Looks at `holds`, then at `broken`, then at the deadline, and calls pause(ns) until one of them
// ends the wait. `ns` is the time that is left until the deadline, at most kLongestWaitNs: a pause
// may be shorter. The condition is looked at first, so a wait whose condition holds already
// succeeds even when the communicator has failed.
template <class Holds, class Broken, class Pause>
WaitEnd wait_until(const Holds& holds, Deadline deadline, const Broken& broken, Pause&& pause) {
  for (;;) {
    if (holds()) return WaitEnd::held;
    if (broken()) return WaitEnd::broken;
    const int64_t left_ns = deadline.left_ns(kLongestWaitNs);
    if (left_ns == 0) return WaitEnd::late;
    pause(left_ns);
  }
}

// A function that returns an error if there is a reason to end a wait, and else success. An empty
// function never ends a wait.
using BreakCheck = std::function<Status()>;

// Waits as above, and returns the reason as an error. It returns true if the condition holds and
// false when the deadline has passed.
template <class Holds, class Pause>
Result<bool> wait_unless(const BreakCheck& broken, const Holds& holds, Deadline deadline,
                         Pause&& pause) {
  Status reason;
  const auto is_broken = [&] {
    if (broken) reason = broken();
    return !reason.ok();
  };
  const WaitEnd end = wait_until(holds, deadline, is_broken, pause);
  if (end == WaitEnd::broken) return reason;
  return end == WaitEnd::held;
}

// The time within which a wait that no thread can wake notices a reason to end.
inline constexpr int64_t kBreakCheckNs = 10'000'000;

// For waits that only the condition or the deadline ends.
inline constexpr auto kNothingBreaks = [] { return false; };

// A pause between looks at a condition whose change nobody announces. The thread first gives its
// core away a number of times, and then sleeps, each time twice as long as before.
class Naps {
 public:
  Naps(int yields, int64_t first_ns, int64_t longest_ns)
      : yields_(yields), next_ns_(first_ns), longest_ns_(longest_ns) {}
  explicit Naps(int64_t each_ns) : Naps(0, each_ns, each_ns) {}
  void operator()(int64_t left_ns) {
    if (yields_ > 0) {
      yields_--;
      yield_core();
      return;
    }
    sleep_ns(std::min(left_ns, next_ns_));
    next_ns_ = std::min(2 * next_ns_, longest_ns_);
  }

 private:
  int yields_;
  int64_t next_ns_, longest_ns_;
};

// A pause that only gives the core away. It is for waits that are short and measured.
struct Yields {
  void operator()(int64_t) const { yield_core(); }
};

// A pause until another thread, which changes the condition under the same lock, notifies
// `changed`.
struct UntilNotified {
  std::unique_lock<std::mutex>& lock;
  Condition& changed;
  void operator()(int64_t left_ns) const { changed.wait_for(lock, left_ns); }
};

}  // namespace fsccl
