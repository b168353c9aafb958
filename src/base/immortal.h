// An object that is there until the process ends: never destroyed, for the library's threads and a
// program's static destructors may come to it late; and not from the heap, for the first to ask may
// be a destructor, where memory is too short.
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
