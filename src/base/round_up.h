// Sizes in whole units.
#pragma once
#include <cstdint>

namespace fsccl {

// The least multiple of `unit` that is not below `value`; their sum must fit 64 bits.
constexpr uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace fsccl
