// The threads of the control side, and how they wait. They are in one place because a simulation
// has its own version (transports/sim).
#pragma once
#include <signal.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "base/status.h"

namespace fsccl {

// A condition variable. Threads wait on it by wait_until() of base/wait.h.
class Condition {
 public:
  // Returns when another thread notifies, when `ns` have passed, or for no reason. A service's
  // thread may use it to sleep between two rounds; a thread that waits for a condition uses
  // wait_until().
  void wait_for(std::unique_lock<std::mutex>& lock, int64_t ns);
  void notify_all();

 private:
  std::condition_variable condition_;
};

// While this object lives, all signals are blocked in the calling thread and in the threads that it
// starts, because the program's signals are for its own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// A thread. The owner calls join() or leave() before it destroys the object or starts it again.
class Thread {
 public:
  // Returns FSCCL_ERR_LIMIT if the system gives no thread, and FSCCL_ERR_OUT_OF_MEMORY if there is
  // no memory for one. The new thread blocks the signals that the caller blocks.
  Status start(std::function<void()> run);
  bool joinable() const { return thread_ != nullptr; }
  void join();
  // The thread goes on, and nobody waits for it. It may use only objects that it owns or that exist
  // until the process ends.
  void leave();

 private:
  std::shared_ptr<void> thread_;
};

// The first function lets the calling thread sleep, the second gives its core to another thread.
// Loops do both by wait_until() of base/wait.h.
void sleep_ns(int64_t ns);
void yield_core();

// Returns true if no thread of the program is left: the first thread has ended, by pthread_exit()
// in main(), and every remaining thread was started by a Thread. Returns false if /proc cannot be
// read.
bool only_library_threads_left();

// Returns the system's number of the calling thread.
int32_t thread_number();

}  // namespace fsccl
