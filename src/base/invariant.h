// FSCCL_INVARIANT states a rule that holds unless the library itself has a defect: not for bad
// arguments, and not for what other processes send. The rule is evaluated in release builds, too.
// Where it does not hold, the guard is told, and the caller ends what it was doing: wrong data is
// worse than an error. The guard of an engine's rules is its EngineFailure (engine/failure.h),
// which counts, logs and fails the communicator.
//
//   if (!FSCCL_INVARIANT(guard_, count_ <= kMost)) return false;
#pragma once

namespace fsccl {

class InvariantGuard {
 public:
  // A rule does not hold. Any thread; takes no memory that it must have, and does not throw.
  virtual void broken(const char* rule, const char* file, int line) noexcept = 0;

 protected:
  ~InvariantGuard() = default;
};

}  // namespace fsccl

// Returns whether the rule holds.
#define FSCCL_INVARIANT(guard, rule)            \
  (__builtin_expect(static_cast<bool>(rule), 1) \
       ? true                                   \
       : (static_cast<::fsccl::InvariantGuard&>(guard).broken(#rule, __FILE__, __LINE__), false))
