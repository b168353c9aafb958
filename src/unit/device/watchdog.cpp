#include "unit/device/watchdog.h"

#include "base/reactor.h"
#include "unit/device/track.h"

namespace fsccl {
namespace {

constexpr int64_t kLookNs = 10'000'000;
constexpr int64_t kReleaseNs = 500'000;  // while streams are let go, one operation at each look

}  // namespace

Watchdog& Watchdog::instance() {
  static Immortal<Watchdog> watchdog;
  return watchdog.get();
}

void Watchdog::add(Track* track) {
  const std::lock_guard hooking(hook_mutex_);
  {
    const std::lock_guard lock(mutex_);
    tracks_.push_back(track);
  }
  if (hook_ < 0) hook_ = Reactor::instance().add_hook([this] { return look(); });
}

void Watchdog::remove(Track* track) {
  const std::lock_guard hooking(hook_mutex_);
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    std::erase(tracks_, track);
    last = tracks_.empty();
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
  // The next note() wakes the watchdog again.
  if (!awake_.exchange(false, std::memory_order_seq_cst)) return -1;
  bool any = false, failed = false;
  for (Track* track : tracks_) {
    if (!track->look()) continue;
    any = true;
    track->comm_.engine().look_for_failure();
  }
  if (!any) return -1;
  for (Track* track : tracks_) {
    if (!track->comm_.engine().failed()) continue;
    track->let_streams_go();
    failed = true;
  }
  awake_.store(true, std::memory_order_seq_cst);
  return failed ? kReleaseNs : kLookNs;
}

}  // namespace fsccl
