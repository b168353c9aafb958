// Implements base/threads.h in a simulated world, where threads are fibers of the process.
#include "base/threads.h"

#include "transports/sim/process.h"

namespace fsccl {

using sim::Process;

void Condition::wait_for(std::unique_lock<std::mutex>& lock, int64_t ns) {
  lock.unlock();
  Process& process = Process::current();
  process.wait(this, process.world().now() + ns);
  lock.lock();
}

void Condition::notify_all() {
  if (Process::any()) Process::current().notify(this);
}

Status Thread::start(std::function<void()> run) {
  thread_ = Process::current().start(std::move(run));
  return success();
}

void Thread::join() {
  const auto fiber = std::static_pointer_cast<sim::Fiber>(thread_);
  while (!Process::ended(*fiber)) Process::current().wait(fiber.get(), INT64_MAX);
  thread_.reset();
}

void Thread::leave() { thread_.reset(); }

void sleep_ns(int64_t ns) { Process::current().sleep(ns); }

// Simulated time stands still while a fiber runs, so there is no other thread to yield to.
void yield_core() {}

int32_t thread_number() { return Process::current().pid; }

}  // namespace fsccl
