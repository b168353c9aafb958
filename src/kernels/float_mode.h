// The floating-point mode of a thread: how results are rounded, and whether subnormal numbers count
// as zeros. A program may set it for each of its threads, and kernels run on threads of programs
// and of the library alike. The bits of a result must not depend on which thread computes them.
#pragma once
#include <cstdint>

namespace fsccl {

// While such an object lives, its thread has the mode with which a program starts: results are
// rounded to nearest even, subnormal numbers keep their values, and nothing traps.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : before_(get()) {
    if (differs()) set(kDefault);
  }
  ~DefaultFloatMode() {
    if (differs()) set(before_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
#if defined(__x86_64__)
  using Mode = uint32_t;
  static constexpr Mode kDefault = 0x1f80, kOccurred = 0x3f;  // the low bits record what occurred

  static Mode get() {
    Mode mode;
    asm volatile("stmxcsr %0" : "=m"(mode) : : "memory");
    return mode;
  }
  static void set(Mode mode) { asm volatile("ldmxcsr %0" : : "m"(mode) : "memory"); }
#elif defined(__aarch64__)
  using Mode = uint64_t;
  static constexpr Mode kDefault = 0, kOccurred = 0;

  static Mode get() {
    Mode mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode) : : "memory");
    return mode;
  }
  static void set(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else  // there is no mode to set
  using Mode = uint32_t;
  static constexpr Mode kDefault = 0, kOccurred = 0;

  static Mode get() { return kDefault; }
  static void set(Mode) {}
#endif
  bool differs() const { return (before_ & ~kOccurred) != kDefault; }

  const Mode before_;
};

}  // namespace fsccl
