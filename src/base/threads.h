// The threads of the control side, and how they wait: in one place, for which a simulation has its
// own (transports/sim).
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

// The same as std::condition_variable. Threads wait on it by wait_until() of base/wait.h.
class Condition {
 public:
  // Returns when somebody notifies, when `ns` have passed, or for no reason. A thread of a service
  // may sleep so between two rounds; whoever waits for a condition uses wait_until().
  void wait_for(std::unique_lock<std::mutex>& lock, int64_t ns);
  void notify_all();

 private:
  std::condition_variable condition_;
};

// All signals are blocked in the calling thread while this lives, and so in those that it starts:
// the program's signals are for its own threads.
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

// Joined or left before it is destroyed or started again.
class Thread {
 public:
  // Returns FSCCL_ERR_LIMIT if the system gives no thread, and FSCCL_ERR_OUT_OF_MEMORY if there is
  // no memory for one. The new thread blocks the signals that the caller blocks.
  Status start(std::function<void()> run);
  bool joinable() const { return thread_ != nullptr; }
  void join();
  // it goes on, and nobody waits for it: what it uses is its own, or there until the process ends
  void leave();

 private:
  std::shared_ptr<void> thread_;
};

// The calling thread sleeps, or gives its core to another thread that wants it. Loops do so by
// wait_until() of base/wait.h.
void sleep_ns(int64_t ns);
void yield_core();

// Returns true if no thread of the program is left: the first thread has ended, by pthread_exit()
// in main(), and every remaining thread was started by a Thread. Returns false if /proc cannot be
// read.
bool only_library_threads_left();

// Returns the system's number of the calling thread.
int32_t thread_number();

}  // namespace fsccl
