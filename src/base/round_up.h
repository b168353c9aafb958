// Sizes in whole units.
#pragma once
#include <cstdint>

namespace fsccl {

// The least multiple of `unit` that is not below `value`; their sum must fit 64 bits.
constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// How many units hold `value`.
constexpr uint64_t ceil_div(uint64_t value, uint64_t unit) {
  return value / unit + (value % unit != 0);
}

}  // namespace fsccl
