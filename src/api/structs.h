// Structs of the caller that begin with their size. The caller may have been compiled with an
// older header, whose struct is shorter, or with a newer one, whose struct is longer: only the
// fields that both sides know are read or written.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "base/status.h"

namespace fsccl {

// The sizes of elements of arrays in release 0.1, on machines with 64-bit addresses.
inline constexpr size_t kParamSize = 128, kRedistributedSize = 32;

// A size that no struct has could end in the middle of a pointer.
template <class T>
bool has_size_of_a_struct(const T& given) {
  constexpr size_t kMost = 4096;
  return given.size >= sizeof(size_t) && given.size <= kMost && given.size % alignof(T) == 0;
}

// Returns a config struct with the caller's fields over the library's defaults. `given` may be
// null.
template <class T>
Status read_config(const T* given, const T& defaults, T* result) {
  static_assert(std::is_trivially_copyable_v<T>);
  *result = defaults;
  if (!given) return success();
  if (!has_size_of_a_struct(*given))
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "the config struct's size field is {}: initialise it with its FSCCL_..._INIT macro",
                given->size);
  std::memcpy(static_cast<void*>(result), given, std::min(given->size, sizeof(T)));
  result->size = sizeof(T);
  return success();
}

// An array of structs that do not contain their size. The caller gives `size`, the size of an
// element; 0 comes from a caller that does not know this field, and means the size in release 0.1.
template <class T>
class Elements {
 public:
  // `defaults` supplies the fields that the caller's elements lack.
  static Result<Elements> make(const T* first, size_t size, size_t size_in_0_1, const T& defaults,
                               const char* name) {
    if (!size) size = size_in_0_1;
    if (size >= size_in_0_1 && size <= 4096 && size % alignof(T) == 0)
      return Elements(first, size, defaults);
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{} is {}: it is the size of the struct, at least {}, or 0", name, size,
                size_in_0_1);
  }
  T operator[](size_t index) const {
    T element = defaults_;
    std::memcpy(static_cast<void*>(&element), first_ + index * size_, std::min(size_, sizeof(T)));
    return element;
  }

 private:
  Elements(const T* first, size_t size, const T& defaults)
      : first_(reinterpret_cast<const std::byte*>(first)), size_(size), defaults_(defaults) {}

  const std::byte* first_;
  size_t size_;
  T defaults_;
};

// Checks that an output struct is given and that its size is valid. `name` is the argument's name,
// `macro` the macro that initialises the struct.
template <class T>
Status check_output(const T* given, const char* name, const char* macro) {
  if (!given)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is NULL: give a struct that {} initialised", name,
                macro);
  if (has_size_of_a_struct(*given)) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT, "{}->size is {}: initialise it with {}", name,
              given->size, macro);
}

// Writes the fields of `made` that the caller's struct has, and keeps the caller's size in it.
template <class T>
void fill_output(T* given, T made) {
  static_assert(std::is_trivially_copyable_v<T>);
  made.size = given->size;
  std::memcpy(static_cast<void*>(given), &made, std::min(given->size, sizeof(T)));
}

}  // namespace fsccl
