// Computes the results that kernels must give, one element at a time and as plainly as possible:
// values are doubles, and nearbyint rounds them at the right quantum, so that no trick with bits is
// shared with the library. The file also has buffers with guards at any misalignment, and the
// instruction sets on which tests are repeated.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/kernels.h"

namespace fsccl::reference {

// Returns every instruction set that this processor and this build have.
inline std::vector<std::string> targets() {
  std::vector<std::string> found;
  for (const char* name : {"portable", "sse4", "avx2", "avx3", "neon"}) {
    if (kernels_use_target_for_test(name)) found.push_back(name);
  }
  kernels_use_target_for_test(nullptr);
  return found;
}

// Makes kernels run on the named instruction set while it lives.
class UseTarget {
 public:
  explicit UseTarget(const std::string& name) {
    EXPECT_TRUE(kernels_use_target_for_test(name.c_str())) << name;
  }
  ~UseTarget() { kernels_use_target_for_test(nullptr); }
};

// Returns `value` rounded to nearest even with `digits` binary digits, smallest normal exponent
// `least`, at most `largest`.
inline double round_to(double value, int digits, int least, double largest) {
  if (!std::isfinite(value) || value == 0) return value;
  int exponent = 0;
  std::frexp(value, &exponent);  // value = m * 2^exponent, 0.5 <= |m| < 1
  const int quantum = std::max(exponent, least + 1) - digits;
  const double rounded =
      std::copysign(std::ldexp(std::nearbyint(std::ldexp(value, -quantum)), quantum), value);
  return std::abs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), value)
                                     : rounded;
}

inline double decode_fp16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  double value =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31)
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  return std::copysign(value, (bits & 0x8000) != 0 ? -1.0 : 1.0);
}
inline uint16_t encode_fp16(double value) {
  const double rounded = round_to(value, 11, -14, 65504);
  const uint16_t sign = std::signbit(rounded) ? 0x8000 : 0;
  if (std::isnan(rounded)) return static_cast<uint16_t>(sign | 0x7e00);
  if (std::isinf(rounded)) return static_cast<uint16_t>(sign | 0x7c00);
  const double magnitude = std::abs(rounded);
  if (magnitude < std::ldexp(1, -14))
    return static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(magnitude, 24)));
  const int exponent = std::ilogb(magnitude);
  return static_cast<uint16_t>(sign | ((exponent + 15) << 10) |
                               static_cast<int>(std::ldexp(magnitude, 10 - exponent) - 1024));
}
inline double decode_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return static_cast<double>(value);
}
inline uint16_t encode_bf16(double value) {
  const float rounded = static_cast<float>(round_to(value, 8, -126, std::ldexp(255, 120)));
  uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  return std::isnan(value) ? 0x7fc0 : static_cast<uint16_t>(bits >> 16);
}

inline double decode_half(fsccl_dtype_t type, uint16_t bits) {
  return type == FSCCL_FLOAT16 ? decode_fp16(bits) : decode_bf16(bits);
}

inline double read_float(fsccl_dtype_t type, const void* at) {
  uint16_t half = 0;
  float single = 0;
  double value = 0;
  if (type == FSCCL_FLOAT32)
    return std::memcpy(&single, at, sizeof single), static_cast<double>(single);
  if (type == FSCCL_FLOAT64) return std::memcpy(&value, at, sizeof value), value;
  std::memcpy(&half, at, sizeof half);
  return decode_half(type, half);
}
inline void write_float(fsccl_dtype_t type, void* at, double value) {
  const uint16_t half = type == FSCCL_FLOAT16 ? encode_fp16(value) : encode_bf16(value);
  const float single = static_cast<float>(value);
  const void* bits = type == FSCCL_FLOAT32   ? static_cast<const void*>(&single)
                     : type == FSCCL_FLOAT64 ? static_cast<const void*>(&value)
                                             : &half;
  std::memcpy(at, bits, dtype_size(type));
}

constexpr fsccl_dtype_t kFloats[] = {FSCCL_FLOAT16, FSCCL_BFLOAT16, FSCCL_FLOAT32, FSCCL_FLOAT64};

// Returns values of `type` that are likely to go wrong. For a 16-bit type they are all values. For
// a wider one they are the values next to all 16-bit values and to the ties between these, and
// random bits.
inline std::vector<uint8_t> interesting(fsccl_dtype_t type) {
  std::vector<uint8_t> bytes;
  const auto add = [&](auto value) {
    const size_t at = bytes.size();
    bytes.resize(at + sizeof value);
    std::memcpy(bytes.data() + at, &value, sizeof value);
  };
  std::mt19937_64 random(20240613);
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (dtype_size(type) == 2) {
      add(half);
      continue;
    }
    for (const fsccl_dtype_t narrow : {FSCCL_FLOAT16, FSCCL_BFLOAT16}) {
      const double low = decode_half(narrow, half);
      const double tie = (low + decode_half(narrow, static_cast<uint16_t>(half + 1))) / 2;
      for (const double value : {low, tie}) {
        if (type == FSCCL_FLOAT32) {
          const float single = static_cast<float>(value);
          add(single), add(std::nextafter(single, 1e38f)), add(std::nextafter(single, -1e38f));
        } else {
          add(value), add(std::nextafter(value, 1e308)), add(std::nextafter(value, -1e308));
        }
      }
    }
    type == FSCCL_FLOAT32 ? add(static_cast<uint32_t>(random()))
                          : add(static_cast<uint64_t>(random()));
  }
  return bytes;
}

// Memory that begins `misalignment` bytes past a 128-byte boundary and lies between guard bytes.
class Buffer {
 public:
  Buffer(size_t bytes, size_t misalignment) : bytes_(bytes), memory_(bytes + 512, kGuard) {
    const size_t past = reinterpret_cast<uintptr_t>(memory_.data()) % 128;
    offset_ = 128 + (128 - past) % 128 + misalignment;
  }
  uint8_t* data() { return memory_.data() + offset_; }
  size_t size() const { return bytes_; }
  std::vector<uint8_t> bytes() { return {data(), data() + bytes_}; }
  bool guards_intact() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if ((i < offset_ || i >= offset_ + bytes_) && memory_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr uint8_t kGuard = 0xa5;
  size_t bytes_;
  std::vector<uint8_t> memory_;
  size_t offset_;
};

}  // namespace fsccl::reference
