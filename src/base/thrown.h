// Tells a destructor whether an exception ends its scope. The library throws nothing itself, so the
// exception is std::bad_alloc.
#pragma once
#include <exception>

namespace fsccl {

class Thrown {
 public:
  explicit operator bool() const noexcept { return std::uncaught_exceptions() > before_; }

 private:
  int before_ = std::uncaught_exceptions();
};

}  // namespace fsccl
