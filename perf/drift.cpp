#include "drift.h"

#include "verify.h"

namespace fsccl::perf {
namespace {

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Between -1 and 1, of 16 bits.
float uniform(uint64_t bits) { return static_cast<float>(bits & 0xffff) / 32767.5f - 1.0f; }

float drifted(uint64_t element, uint32_t stream, uint32_t generation) {
  constexpr float kSpread = 0.02f * 0.866f,
                  kStep = 5e-5f;  // four uniform numbers have a deviation of 1.155
  const uint64_t own = mixed(element * 0x9e3779b97f4a7c15ull + stream);
  const float value = uniform(own) + uniform(own >> 16) + uniform(own >> 32) + uniform(own >> 48);
  return kSpread * value + kStep * uniform(mixed(own + generation * 0xd1b54a32d192ed03ull));
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

}  // namespace fsccl::perf
