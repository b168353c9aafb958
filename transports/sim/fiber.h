// A thread of a simulated process: code with a stack of its own, which can be entered and left.
// Sanitizers are told of each switch of stacks.
#pragma once
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace fsccl::sim {

struct Fiber {
  explicit Fiber(std::function<void()> run);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  // Runs the fiber until it calls leave() or ends.
  void enter();
  static void leave();
  static Fiber* inside();  // the running fiber; null if none runs

  bool over = false;
  const void* waits_for = nullptr;
  uint64_t ticket = 0;  // the number of its present wait

 private:
  static void begin();
  void switch_out(bool for_good);

  std::function<void()> run_;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t here_{}, back_{};
  void *fake_here_ = nullptr, *fake_back_ = nullptr;  // stacks for the address sanitizer
  const void* back_bottom_ = nullptr;
  size_t back_bytes_ = 0;
  void *thread_here_ = nullptr, *thread_back_ = nullptr;  // fibers for the thread sanitizer
};

}  // namespace fsccl::sim
