#include "cuda_on_host.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

thread_local Dimensions threadIdx, blockIdx, blockDim, gridDim;

namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kWarp = 32;

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "emulated kernel: %s (block %u, thread %u)\n", what, blockIdx.x,
               threadIdx.x);
  std::abort();
}

// A barrier of threads. It counts the threads that have come, and how often it has opened.
struct Barrier {
  unsigned come = 0, opened = 0;
  void come_to(unsigned expected) {
    if (++come == expected) come = 0, opened++;
  }
};

// A context lets a fiber begin. All other switches are jumps, because a switch of contexts makes a
// system call, which would take most of the time of a kernel with barriers.
struct Fiber {
  ucontext_t begins;
  jmp_buf left;  // where the fiber has left, once it has begun
  char* stack = nullptr;
  bool begun = false, over = false;
  const Barrier* waits_for = nullptr;
  unsigned until = 0;  // waits until `waits_for` has opened this many times
#if defined(__SANITIZE_ADDRESS__)
  void* sanitizer_stack = nullptr;
#endif
};

// Returns the stack of a thread of the block. The operating system's thread keeps the stacks for
// the blocks that it runs one after the other.
char* stack_of(unsigned thread) {
  static thread_local std::vector<std::unique_ptr<char[]>> stacks;
  while (stacks.size() <= thread) stacks.emplace_back(new char[kStackBytes]);
  return stacks[thread].get();
}

// The threads of one block.
class Block {
 public:
  Block(unsigned threads, void (*thread)(void*), void* launch)
      : fibers_(threads),
        warps_((threads + kWarp - 1) / kWarp),
        thread_(thread),
        launch_(launch),
        running_(threads) {}

  void run() {
    for (unsigned i = 0; i < fibers_.size(); i++) start(fibers_[i], stack_of(i));
    while (running_) {
      bool moved = false;
      for (unsigned i = 0; i < fibers_.size(); i++) {
        Fiber& fiber = fibers_[i];
        if (fiber.over || (fiber.waits_for && fiber.waits_for->opened == fiber.until)) continue;
        fiber.waits_for = nullptr;
        enter(i);
        moved = true;
      }
      if (!moved) stop("threads wait at barriers that others never come to");
    }
  }

  void wait(Barrier& barrier, unsigned expected) {
    Fiber& fiber = fibers_[threadIdx.x];
    fiber.waits_for = &barrier;
    fiber.until = barrier.opened;
    barrier.come_to(expected);
    leave(fiber);
  }
  void wait_for_all() { wait(all_, running_); }
  void wait_for_lanes(unsigned mask) {
    wait(warps_[threadIdx.x / kWarp], static_cast<unsigned>(__builtin_popcount(mask)));
  }

 private:
  static void begin();
  static void start(Fiber& fiber, char* stack) {
    fiber.stack = stack;
    getcontext(&fiber.begins);
    fiber.begins.uc_stack = {fiber.stack, 0, kStackBytes};
    fiber.begins.uc_link = nullptr;
    makecontext(&fiber.begins, begin, 0);
  }
  void enter(unsigned i) {
    threadIdx = {i, 0, 0};
#if defined(__SANITIZE_ADDRESS__)
    void* here = nullptr;
    __sanitizer_start_switch_fiber(&here, fibers_[i].stack, kStackBytes);
#endif
    if (_setjmp(scheduler_) == 0) go_on(fibers_[i]);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(here, nullptr, nullptr);
#endif
  }
  [[noreturn]] static void go_on(Fiber& fiber) {
    if (fiber.begun) _longjmp(fiber.left, 1);
    fiber.begun = true;
    setcontext(&fiber.begins);
    stop("no context");
  }
  void leave(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fiber.over ? nullptr : &fiber.sanitizer_stack, scheduler_stack_,
                                   scheduler_bytes_);
#endif
    if (_setjmp(fiber.left) == 0) _longjmp(scheduler_, 1);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber.sanitizer_stack, &scheduler_stack_, &scheduler_bytes_);
#endif
  }

  std::vector<Fiber> fibers_;
  std::vector<Barrier> warps_;
  Barrier all_;
  void (*thread_)(void*);
  void* launch_;
  unsigned running_;
  jmp_buf scheduler_;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_bytes_ = 0;
};

thread_local Block* current_block;

void Block::begin() {
  Block& block = *current_block;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &block.scheduler_stack_, &block.scheduler_bytes_);
#endif
  block.thread_(block.launch_);
  Fiber& fiber = block.fibers_[threadIdx.x];
  fiber.over = true;
  block.running_--;
  // A barrier waits only for threads that still run.
  if (block.running_ && block.all_.come == block.running_) block.all_.come = 0, block.all_.opened++;
  block.leave(fiber);
}

// Shows a lane the values of its warp's lanes, and returns what look() makes of them.
template <class Look>
unsigned look_at_lanes(unsigned mask, unsigned value, const Look& look) {
  static thread_local unsigned values[1024];
  values[threadIdx.x] = value;
  __syncwarp(mask);
  const unsigned seen = look(values + threadIdx.x / kWarp * kWarp);
  __syncwarp(mask);
  return seen;
}

// Joins the values of a warp's lanes, in the order of the lanes.
template <class Join>
unsigned over_lanes(unsigned mask, unsigned value, const Join& join) {
  return look_at_lanes(mask, value, [&](const unsigned* warp) {
    unsigned joined = 0;
    for (unsigned lane = 0; lane < kWarp; lane++)
      if (mask >> lane & 1u) joined = join(joined, warp[lane]);
    return joined;
  });
}

}  // namespace

void __syncthreads() {
  if (!current_block) stop("a barrier in a launch that was to have none");
  current_block->wait_for_all();
}
void __syncwarp(unsigned mask) {
  if (!current_block) stop("a barrier in a launch that was to have none");
  current_block->wait_for_lanes(mask);
}
unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return over_lanes(mask, value, [](unsigned a, unsigned b) { return a + b; });
}
unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  return over_lanes(mask, value, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
unsigned __reduce_xor_sync(unsigned mask, unsigned value) {
  return over_lanes(mask, value, [](unsigned a, unsigned b) { return a ^ b; });
}
unsigned __shfl_xor_sync(unsigned mask, unsigned value, unsigned lanes) {
  return look_at_lanes(mask, value,
                       [&](const unsigned* warp) { return warp[threadIdx.x % kWarp ^ lanes]; });
}
float __shfl_xor_sync(unsigned mask, float value, unsigned lanes) {
  return __uint_as_float(__shfl_xor_sync(mask, __float_as_uint(value), lanes));
}
void misaligned(const void* address, unsigned bytes) {
  std::fprintf(stderr, "emulated kernel: %u bytes at %p, which is misaligned\n", bytes, address);
  std::abort();
}

void run_grid(const unsigned grid[3], const unsigned block[3], bool barriers, void (*thread)(void*),
              void* launch) {
  if (grid[1] != 1 || grid[2] != 1 || block[1] != 1 || block[2] != 1)
    stop("grids and blocks of one dimension only");
  gridDim = {grid[0], 1, 1};
  blockDim = {block[0], 1, 1};
  for (unsigned i = grid[0]; i-- > 0;) {
    blockIdx = {i, 0, 0};
    if (barriers) {
      Block running(block[0], thread, launch);
      current_block = &running;
      running.run();
      current_block = nullptr;
    } else {
      for (threadIdx = {0, 0, 0}; threadIdx.x < block[0]; threadIdx.x++) thread(launch);
    }
  }
}
