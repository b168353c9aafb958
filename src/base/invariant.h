// FSCCL_INVARIANT states a rule that holds unless the library itself has a defect. It is not for
// bad arguments, and not for what other processes send. Release builds evaluate the rule, too. If
// the rule does not hold, the macro tells the guard, and the caller stops what it was doing,
// because wrong data is worse than an error. The guard of an engine's rules is its EngineFailure
// (engine/failure.h), which counts the event, logs it and fails the communicator.
//
//   if (!FSCCL_INVARIANT(guard_, count_ <= kMost)) return false;
#pragma once

namespace fsccl {

class InvariantGuard {
 public:
  // The macro calls this when a rule does not hold, on any thread. It must not throw, and it must
  // work when no memory can be allocated.
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
