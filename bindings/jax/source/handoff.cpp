// Threads that wait for tasks. They live as long as the process, because XLA's work may be in them
// when the process ends.
// SPDX-License-Identifier: Apache-2.0
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
      std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      guard.unlock();
      std::function<void()> behind;
      for (next = &behind; task; task = std::exchange(behind, nullptr)) task();
      next = nullptr;
      guard.lock();
    }
  }

  void add(std::function<void()> task) {
    const std::lock_guard guard(lock);
    tasks.push_back(std::move(task));
    if (idle < tasks.size()) std::thread([this] { serve(); }).detach();
    more.notify_one();
  }

  // The hand-off that the calling thread serves next, if it is such a thread.
  static thread_local std::function<void()>* next;
};
thread_local std::function<void()>* Threads::next = nullptr;
Threads& threads = *new Threads;  // never destroyed, for the threads use it to the end
}  // namespace

void hand_off(std::function<void()> task) {
  if (Threads::next == nullptr) return threads.add(std::move(task));
  if (*Threads::next) threads.add(std::move(*Threads::next));
  *Threads::next = std::move(task);
}

}  // namespace fsccl_jax
