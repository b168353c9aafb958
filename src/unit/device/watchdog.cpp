#include "unit/device/watchdog.h"

#include "base/reactor.h"
#include "unit/device/lane.h"

namespace fsccl {
namespace {

constexpr int64_t kLookNs = 10'000'000;
constexpr int64_t kReleaseNs = 500'000;  // while streams are let go, one operation after the other

}  // namespace

Watchdog& Watchdog::instance() {
  static Immortal<Watchdog> watchdog;
  return watchdog.get();
}

void Watchdog::add(Lane* lane) {
  const std::lock_guard hooking(hook_mutex_);
  {
    const std::lock_guard lock(mutex_);
    lanes_.push_back(lane);
  }
  if (hook_ < 0) hook_ = Reactor::instance().add_hook([this] { return look(); });
}

void Watchdog::remove(Lane* lane) {
  const std::lock_guard hooking(hook_mutex_);
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    std::erase(lanes_, lane);
    last = lanes_.empty();
  }
  if (!last) return;
  Reactor::instance().remove_hook(hook_);
  hook_ = -1;
}

void Watchdog::wake() {
  if (!awake_.exchange(true, std::memory_order_seq_cst)) Reactor::instance().kick();
}

int64_t Watchdog::look() {
  const std::lock_guard lock(mutex_);
  // a later note wakes it again
  if (!awake_.exchange(false, std::memory_order_seq_cst)) return -1;
  bool any = false, failed = false;
  for (Lane* lane : lanes_) {
    if (!lane->look()) continue;
    any = true;
    lane->comm_.engine().look_for_failure();
  }
  if (!any) return -1;
  for (Lane* lane : lanes_) {
    if (!lane->comm_.engine().failed()) continue;
    lane->release();
    failed = true;
  }
  awake_.store(true, std::memory_order_seq_cst);
  return failed ? kReleaseNs : kLookNs;
}

}  // namespace fsccl
