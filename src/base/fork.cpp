#include "base/fork.h"

#include <pthread.h>

#include <array>
#include <mutex>

namespace fsccl {

namespace internal {
std::atomic<bool> forked{false};
}  // namespace internal

namespace {

struct Hook {
  void (*run)(void*) = nullptr;
  void* context = nullptr;
};

// The table has a fixed size, because the child must not allocate.
constexpr int kMaxHooks = 4096;
std::array<Hook, kMaxHooks> hooks;
// The mutex is held across fork(), so that the child never sees a table that another thread was
// changing.
std::mutex hooks_mutex;

void before_fork() { hooks_mutex.lock(); }
void in_parent() { hooks_mutex.unlock(); }
void in_child() {
  internal::forked.store(true, std::memory_order_relaxed);
  hooks_mutex.unlock();
  for (const Hook& hook : hooks) {
    if (hook.run != nullptr) hook.run(hook.context);
  }
}

}  // namespace

Status forked_status() {
  return fail(FSCCL_ERR_FORKED,
              "this process is a fork of one that uses the library, whose handles it does not "
              "inherit; fork before the first "
              "communicator is made, or start a new program (exec, spawn) instead");
}

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(before_fork, in_parent, in_child); });
}

Result<int> add_fork_hook(void (*hook)(void* context), void* context) {
  watch_forks();
  const std::lock_guard lock(hooks_mutex);
  for (int id = 0; id < kMaxHooks; ++id) {
    Hook& free = hooks[static_cast<size_t>(id)];
    if (free.run != nullptr) continue;
    free = {hook, context};
    return id;
  }
  return fail(FSCCL_ERR_LIMIT,
              "more than {} objects of this process need to know of fork(); destroy subscribers "
              "that are no longer used",
              kMaxHooks);
}

void remove_fork_hook(int id) {
  if (id < 0 || id >= kMaxHooks) return;
  const std::lock_guard lock(hooks_mutex);
  hooks[static_cast<size_t>(id)] = {};
}

}  // namespace fsccl
