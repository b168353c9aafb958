#include "base/threads.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <new>
#include <system_error>
#include <thread>

namespace fsccl {

void Condition::wait_for(std::unique_lock<std::mutex>& lock, int64_t ns) {
  condition_.wait_for(lock, std::chrono::nanoseconds(ns));
}

void Condition::notify_all() { condition_.notify_all(); }

Status Thread::start(std::function<void()> run) {
  try {
    thread_ = std::make_shared<std::thread>(std::move(run));
  } catch (const std::system_error& error) {
    return fail(FSCCL_ERR_LIMIT, "a thread cannot start: {}; raise the limit of processes (ulimit -u)", error.what());
  } catch (const std::bad_alloc&) {
    return fail(FSCCL_ERR_OUT_OF_MEMORY, "there is no memory for a thread");
  }
  return success();
}

void Thread::join() {
  static_cast<std::thread*>(thread_.get())->join();
  thread_.reset();
}

void Thread::leave() {
  static_cast<std::thread*>(thread_.get())->detach();
  thread_.reset();
}

void sleep_ns(int64_t ns) {
  const timespec time = {ns / 1'000'000'000, ns % 1'000'000'000};
  nanosleep(&time, nullptr);
}

int32_t thread_number() {
  static thread_local const auto number = static_cast<int32_t>(syscall(SYS_gettid));
  return number;
}

}  // namespace fsccl
