#include "drift.h"

#include <cmath>
#include <cstring>

#include "fsccl/codec.h"
#include "verify.h"

namespace fsccl::perf {
namespace {

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Returns a number between -1 and 1, made of 16 bits.
float uniform(uint64_t bits) { return static_cast<float>(bits & 0xffff) / 32767.5f - 1.0f; }

float drifted(uint64_t element, uint32_t stream, uint32_t generation) {
  // The sum of four of these uniform numbers has a standard deviation of 1.155.
  constexpr float kSpread = 0.02f * 0.866f, kStep = 5e-5f;
  const uint64_t own = mixed(element * 0x9e3779b97f4a7c15ull + stream);
  const float value = uniform(own) + uniform(own >> 16) + uniform(own >> 32) + uniform(own >> 48);
  return kSpread * value + kStep * uniform(mixed(own + generation * 0xd1b54a32d192ed03ull));
}

float value_of(uint16_t word, fsccl_dtype_t wire) {
  if (wire == FSCCL_FLOAT16) {  // fill_drifted() makes finite numbers only
    const int exponent = word >> 10 & 31, mantissa = word & 1023;
    const float magnitude = exponent
                                ? std::ldexp(1024.0f + static_cast<float>(mantissa), exponent - 25)
                                : std::ldexp(static_cast<float>(mantissa), -24);
    return word & 0x8000 ? -magnitude : magnitude;
  }
  const uint32_t bits = uint32_t{word} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

void fill_drifted(float* data, uint64_t count, uint64_t first, uint32_t stream,
                  uint32_t generation) {
  for (uint64_t i = 0; i < count; i++) data[i] = drifted(first + i, stream, generation);
}

uint64_t count_wrong_drifted(const void* data, fsccl_dtype_t wire, uint64_t count, uint64_t first,
                             uint32_t stream, uint32_t generation) {
  const auto* const words = static_cast<const uint16_t*>(data);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < count; i++) {
    const float value = drifted(first + i, stream, generation);
    wrong += words[i] != (wire == FSCCL_BFLOAT16 ? bfloat16_bits(value) : half_bits(value));
  }
  return wrong;
}

uint64_t count_far_drifted(const void* data, fsccl_dtype_t wire, uint64_t count, uint64_t first,
                           uint32_t stream, uint32_t generation, fsccl_codec_kind_t codec) {
  constexpr float kLargest = 0.07f;
  const float bound = codec == FSCCL_CODEC_INT8  ? 1 / 254.0f
                      : codec == FSCCL_CODEC_FP8 ? 1 / 28.0f
                                                 : 1 / 16.0f;
  const auto* const words = static_cast<const uint16_t*>(data);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < count; i++) {
    const float value = value_of(words[i], wire);
    const float expected = drifted(first + i, stream, generation);
    wrong += !(std::fabs(value - expected) <= kLargest * (bound + 1 / 256.0f));
  }
  return wrong;
}

}  // namespace fsccl::perf
