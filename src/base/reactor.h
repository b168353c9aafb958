// The service thread of the process. It watches descriptors and calls their watchers, and in
// between it runs hooks, which advance the engines' operations. It starts when the first user needs
// it, ends with its last user, and blocks all signals. It does not keep the process alive: when no
// thread of the program is left, the service thread ends the process as the end of the last thread
// would have.
//
// After fork the child has no service thread and starts none. The watched descriptors are closed in
// the child, so that a child that lives on does not hide its parent's death from the peers.
//
// If a callback throws std::bad_alloc, the thread calls it again a little later, as long as the
// reason for the call remains. The callback must be able to start again.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/immortal.h"
#include "base/status.h"
#include "base/threads.h"

namespace fsccl {

class Reactor {
 public:
  static Reactor& instance();

  // The service thread calls `readable` whenever `fd` is readable or its peer has closed, and
  // `writable` while want_writable says so. Callbacks must not block. A descriptor has one watcher.
  // The caller calls unwatch() before it closes the descriptor.
  Status watch(int fd, std::function<void()> readable, std::function<void()> writable = {});
  void want_writable(int fd, bool wanted);
  // When this returns, the callback is not running and does not run again. A callback may call it
  // for itself.
  void unwatch(int fd);

  // A hook advances work and returns for how many nanoseconds the thread may sleep in epoll before
  // it calls the hook again; 0 means at once, and a negative number means until kick(). The hook
  // may itself sleep for at most about 10 ms. All hooks run after every wake-up, whatever its
  // cause. Returns an id for remove_hook(), which gives the same guarantee as unwatch(), or -1
  // after fork.
  int add_hook(std::function<int64_t()> hook);
  void remove_hook(int id);
  // Wakes the thread. Any thread may call it, it is async-signal-safe, and it is cheap when the
  // thread is awake.
  void kick();
  bool in_service_thread() const;

 private:
  struct Watcher {
    int fd = -1;
    bool want_writable = false;
    std::function<void()> readable, writable;
  };
  struct Hook {
    int id = 0;
    std::function<int64_t()> run;
    bool removed = false;
  };

  friend class Immortal<Reactor>;
  Reactor();
  static void before_fork();
  static void after_fork_parent();
  static void after_fork_child();
  Status start_locked();
  bool unused() const { return watchers_.empty() && hooks_.empty(); }
  void stop_if_unused(std::unique_lock<std::mutex>& lock);
  bool end_if_unused();
  void run();
  void end_with_program();
  int64_t run_hooks();
  void wait_for_events(int64_t sleep_ns);
  void dispatch(uint32_t watcher_id, uint32_t events);
  template <class Call>
  void run_unlocked(std::unique_lock<std::mutex>& lock, const void* what, Call call);
  void wait_until_idle(std::unique_lock<std::mutex>& lock, const void* what);

  mutable std::mutex mutex_;
  Condition idle_;
  Fd epoll_, wake_;
  Thread thread_;
  bool running_ = false;          // the thread is in its loop
  bool short_of_memory_ = false;  // a callback met that; the service thread's own
  bool ending_ = false;           // the process; the service thread's own, like the next
  int64_t next_look_ns_ = 0;
  bool stopping_ = false;  // the thread was asked to end, if nothing is watched by then
  std::atomic<std::thread::id> service_thread_{};
  std::atomic<bool> forked_{false};
  std::atomic<bool> kicked_{false};
  std::atomic<bool> sleeping_{false};
  std::unordered_map<uint32_t, std::shared_ptr<Watcher>>
      watchers_;  // by watcher id, so that a late event never meets a descriptor's next owner
  std::unordered_map<int, uint32_t> watcher_of_fd_;
  std::vector<std::shared_ptr<Hook>> hooks_;
  std::vector<std::shared_ptr<Hook>> running_hooks_;  // memory of run_hooks(), which it keeps
  uint32_t next_watcher_id_ = 1;
  int next_hook_id_ = 1;
  const void* current_ = nullptr;  // the watcher or hook whose callback runs now
};

}  // namespace fsccl
