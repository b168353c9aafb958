// Parameters that move as in training: they stay near fixed values of about N(0, 0.02), and each
// step moves them by a few 1e-5. Their differences in bfloat16 thus have about the entropy that
// pre-training has at its highest rate (docs/codecs.md). These are pure functions over memory.
#pragma once
#include <fsccl/codec.h>
#include <fsccl/fsccl.h>

#include <cstdint>

namespace fsccl::perf {

// Writes `count` elements of a vector of fp32, from element `first` on.
void fill_drifted(float* data, uint64_t count, uint64_t first, uint32_t stream,
                  uint32_t generation);
// Returns how many elements differ from their cast to `wire`, bfloat16 or float16.
uint64_t count_wrong_drifted(const void* data, fsccl_dtype_t wire, uint64_t count, uint64_t first,
                             uint32_t stream, uint32_t generation);
// Returns how many elements are further from their values in fp32 than a block codec may bring
// them, in blocks with the largest parameter that there can be.
uint64_t count_far_drifted(const void* data, fsccl_dtype_t wire, uint64_t count, uint64_t first,
                           uint32_t stream, uint32_t generation, fsccl_codec_kind_t codec);

}  // namespace fsccl::perf
