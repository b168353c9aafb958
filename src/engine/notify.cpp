#include "engine/notify.h"

#include <deque>
#include <utility>

namespace fsccl {
namespace {

using Call = std::pair<Notification, fsccl_status_t>;
thread_local std::deque<Call>* later = nullptr;  // of the call that this thread is in

}  // namespace

void Notifications::add(uint64_t sequence, Notification notification) {
  const std::lock_guard lock(mutex_);
  list_.emplace(sequence, std::move(notification));
  if (sequence < next_.load(std::memory_order_relaxed)) next_.store(sequence, std::memory_order_relaxed);
}

bool Notifications::all_due() {
  const std::lock_guard lock(mutex_);
  if (list_.empty()) return false;
  next_.store(0, std::memory_order_relaxed);
  return true;
}

void Notifications::notify(uint64_t completed, fsccl_status_t failure) {
  std::vector<Call> calls;
  {
    const std::lock_guard lock(mutex_);
    while (!list_.empty() && (list_.begin()->first <= completed || failure < 0)) {
      calls.emplace_back(std::move(list_.begin()->second), list_.begin()->first <= completed ? FSCCL_OK : failure);
      list_.erase(list_.begin());
    }
    next_.store(list_.empty() ? kNone : list_.begin()->first, std::memory_order_relaxed);
  }
  for (Call& one : calls) call(std::move(one.first), one.second);
}

void Notifications::call(Notification notification, fsccl_status_t status) {
  if (notification.event.valid()) {
    const uint64_t one = 1;
    (void)!write(notification.event.get(), &one, sizeof one);  // cannot fail: the counter is at most what a reader left there
    return;
  }
  if (later) return later->emplace_back(std::move(notification), status), void();
  std::deque<Call> queue;
  later = &queue;
  for (queue.emplace_back(std::move(notification), status); !queue.empty(); queue.pop_front())
    queue.front().first.done(queue.front().first.context, queue.front().second);
  later = nullptr;
}

bool Notifications::calling() { return later != nullptr; }

}  // namespace fsccl
