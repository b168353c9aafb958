// Arithmetic for sizes in whole units.
#pragma once
#include <cstdint>

namespace fsccl {

// Returns the least multiple of `unit` that is not below `value`. The sum of the two arguments must
// fit into 64 bits.
constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Returns how many units hold `value`.
constexpr uint64_t ceil_div(uint64_t value, uint64_t unit) {
  return value / unit + (value % unit != 0);
}

}  // namespace fsccl
