// The library after fork(). A child process has none of the library's threads, and its handles
// refer to the parent's communicators. If a process that has initialised the library forks,
// forked() therefore returns true in the child from then on, and every call returns
// FSCCL_ERR_FORKED. The parent is not affected.
#pragma once
#include <atomic>

#include "base/status.h"

namespace fsccl {

namespace internal {
extern std::atomic<bool> forked;
}  // namespace internal

// Returns true in such a child. It is one load, so every call of the API can afford it.
inline bool forked() { return internal::forked.load(std::memory_order_relaxed); }
Status forked_status();  // FSCCL_ERR_FORKED with its text

// After this call forked() returns true in children of this process. The caller calls it before it
// makes the first object, and may call it again.
void watch_forks();

// The child runs hook(context) inside fork(), so the hook may call only functions that are
// async-signal-safe. Returns an id, or an error if too many hooks are registered.
Result<int> add_fork_hook(void (*hook)(void* context), void* context);
void remove_fork_hook(int id);

}  // namespace fsccl
