// An object that exists until the process ends. It is never destroyed, because threads of the
// library and static destructors of the program may use it late. It is not on the heap, because the
// first user may be a destructor in a process that is short of memory.
#pragma once
#include <cstddef>
#include <new>

namespace fsccl {

template <class T>
class Immortal {
 public:
  Immortal() { new (place_) T; }
  T& get() { return *std::launder(reinterpret_cast<T*>(place_)); }

 private:
  alignas(T) std::byte place_[sizeof(T)];
};

}  // namespace fsccl
