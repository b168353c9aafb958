#include "transports/sim/fiber.h"

#include "transports/sim/process.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define FSCCL_ADDRESS(call) __sanitizer_##call
#else
#define FSCCL_ADDRESS(call) void(0)
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define FSCCL_THREAD(call) __tsan_##call
#else
#define FSCCL_THREAD(call) nullptr
#endif

namespace fsccl::sim {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
Fiber* now = nullptr;

}  // namespace

Fiber::Fiber(std::function<void()> run)
    : run_(std::move(run)), stack_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)) {
  thread_here_ = FSCCL_THREAD(create_fiber(0));
  getcontext(&here_);
  here_.uc_stack.ss_sp = stack_.get();
  here_.uc_stack.ss_size = kStackBytes;
  here_.uc_link = nullptr;
  makecontext(&here_, begin, 0);
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(thread_here_);
#endif
}

Fiber* Fiber::inside() { return now; }

void Fiber::begin() {
  Fiber* const self = now;
  FSCCL_ADDRESS(finish_switch_fiber(nullptr, &self->back_bottom_, &self->back_bytes_));
  try {
    self->run_();
  } catch (const std::exception& error) {
    Process::blame(std::string("an exception ended a thread: ") + error.what());
  }
  self->run_ = nullptr;
  self->over = true;
  self->switch_out(true);
}

void Fiber::enter() {
  now = this;
  thread_back_ = FSCCL_THREAD(get_current_fiber());
  FSCCL_ADDRESS(start_switch_fiber(&fake_back_, stack_.get(), kStackBytes));
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(thread_here_, 0);
#endif
  swapcontext(&back_, &here_);
  FSCCL_ADDRESS(finish_switch_fiber(fake_back_, nullptr, nullptr));
  now = nullptr;
}

void Fiber::leave() { now->switch_out(false); }

void Fiber::switch_out([[maybe_unused]] bool for_good) {
  FSCCL_ADDRESS(start_switch_fiber(for_good ? nullptr : &fake_here_, back_bottom_, back_bytes_));
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(thread_back_, 0);
#endif
  swapcontext(&here_, &back_);
  FSCCL_ADDRESS(finish_switch_fiber(fake_here_, &back_bottom_, &back_bytes_));
}

}  // namespace fsccl::sim
