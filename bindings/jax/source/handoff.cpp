// Threads that wait for tasks. They live as long as the process: XLA's work may be in them when it
// ends. SPDX-License-Identifier: Apache-2.0
#include "handoff.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace fsccl_jax {
namespace {
struct Threads {
  std::mutex lock;
  std::condition_variable more;
  std::deque<std::function<void()>> tasks;
  size_t idle = 0;

  void serve() {
    std::unique_lock guard(lock);
    while (true) {
      ++idle;
      more.wait(guard, [this] { return !tasks.empty(); });
      --idle;
      const std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      guard.unlock();
      task();
      guard.lock();
    }
  }
};
Threads& threads = *new Threads;  // never destroyed, for the threads use it to the end
}  // namespace

void hand_off(std::function<void()> task) {
  const std::lock_guard guard(threads.lock);
  threads.tasks.push_back(std::move(task));
  if (threads.idle < threads.tasks.size()) std::thread([] { threads.serve(); }).detach();
  threads.more.notify_one();
}

}  // namespace fsccl_jax
