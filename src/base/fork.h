// The library after fork(). A child process has none of the library's threads, and its handles
// would reach into the parent's communicators. In a child of a process that had initialised the
// library, forked() is therefore true for good, and every call returns FSCCL_ERR_FORKED. The parent
// does not notice.
#pragma once
#include <atomic>

#include "base/status.h"

namespace fsccl {

namespace internal {
extern std::atomic<bool> forked;
}  // namespace internal

// One load: cheap enough for every call.
inline bool forked() { return internal::forked.load(std::memory_order_relaxed); }
Status forked_status();  // FSCCL_ERR_FORKED with its text

// From now on children of this process are marked. Idempotent; to be called before the first object
// is made.
void watch_forks();

// Runs hook(context) in the child, in fork() itself: only async-signal-safe functions are allowed
// there. Returns an id, or an error when too many are registered.
Result<int> add_fork_hook(void (*hook)(void* context), void* context);
void remove_fork_hook(int id);

}  // namespace fsccl
