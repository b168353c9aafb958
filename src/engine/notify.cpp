#include "engine/notify.h"

#include <algorithm>
#include <utility>

#include "base/user_call.h"

namespace fsccl {
namespace {

thread_local void* later = nullptr;  // functions that a call in this thread has still to call

}  // namespace

void Notifications::add(uint64_t sequence, Notification notification) {
  const std::lock_guard lock(mutex_);
  const auto behind = std::find_if(list_.begin(), list_.end(), [&](const Pending& pending) {
    return pending.sequence > sequence;
  });
  list_.insert(behind, Pending{sequence, std::move(notification)});
  if (sequence < next_.load(std::memory_order_relaxed))
    next_.store(sequence, std::memory_order_relaxed);
}

bool Notifications::all_due() {
  const std::lock_guard lock(mutex_);
  if (list_.empty()) return false;
  next_.store(0, std::memory_order_relaxed);
  return true;
}

void Notifications::notify(uint64_t completed, fsccl_status_t failure) {
  std::list<Pending> due;
  {
    const std::lock_guard lock(mutex_);
    while (!list_.empty() && (list_.front().sequence <= completed || failure < 0)) {
      list_.front().status = list_.front().sequence <= completed ? FSCCL_OK : failure;
      due.splice(due.end(), list_, list_.begin());
    }
    next_.store(list_.empty() ? kNone : list_.front().sequence, std::memory_order_relaxed);
  }
  call(std::move(due));
}

void Notifications::call(Notification notification, fsccl_status_t status) {
  std::list<Pending> one;
  one.push_back({0, std::move(notification), status});
  call(std::move(one));
}

void Notifications::call(std::list<Pending>&& due) {
  std::list<Pending> functions;
  while (!due.empty()) {
    const Notification& first = due.front().notification;
    if (!first.event.valid()) {
      functions.splice(functions.end(), due, due.begin());
      continue;
    }
    const uint64_t one = 1;
    // The write cannot fail, because the counter never exceeds what the reader left.
    (void)!write(first.event.get(), &one, sizeof one);
    due.pop_front();
  }
  if (later) {
    auto* const queue = static_cast<std::list<Pending>*>(later);
    queue->splice(queue->end(), functions);
    return;
  }
  later = &functions;
  for (; !functions.empty(); functions.pop_front()) {
    const Pending& first = functions.front();
    call_user("callback",
              [&] { first.notification.done(first.notification.context, first.status); });
  }
  later = nullptr;
}

bool Notifications::calling() { return later != nullptr; }

}  // namespace fsccl
