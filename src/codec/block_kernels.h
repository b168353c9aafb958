// The passes over elements, one set for each instruction set; blocks.cpp makes chunks with them.
#pragma once
#include "codec/blocks.h"

namespace fsccl {

struct BlockEncoding {
  uint8_t* scales = nullptr;
  uint8_t* codes = nullptr;

  // where the next exact elements are written; the pass advances it
  uint8_t* exact_to = nullptr;
  uint64_t room = 0;
  bool full = false;  // there was not enough room, and the rest was not encoded
  double most_error = 0, bound = 0;
  uint32_t every = 1;
  uint64_t phase = 0;
  uint32_t exact = 0, audited = 0, beyond = 0;
  float largest = 0, worst = 0;
  Overrun overrun;

  float* feedback = nullptr;  // sums
};
void encode_block_kernel(const void* from, fsccl_dtype_t dtype, size_t count, const BlockForm& form,
                         BlockEncoding& work);
void encode_sum_kernel(const void* from, fsccl_dtype_t dtype, size_t count, const BlockForm& form,
                       BlockEncoding& work);

struct BlockDecoding {
  const uint8_t* scales = nullptr;
  const uint8_t* codes = nullptr;
  const uint8_t* exact_from = nullptr;  // it moves on, up to `end`
  const uint8_t* end = nullptr;
  uint32_t exact = 0;  // blocks that there are; more than `end` allows: left out
  Overrun overrun;
};
void decode_block_kernel(void* to, fsccl_dtype_t dtype, size_t count, const BlockForm& form,
                         BlockDecoding& work);
void add_sum_kernel(float* sums, size_t count, const BlockForm& form, bool adds,
                    BlockDecoding& work);

}  // namespace fsccl
