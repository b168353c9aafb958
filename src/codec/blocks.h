// Block codecs encode floats in a few bits each, with a scale for each block of them. They are
// lossy, within a stated bound.
//
//   int8    q of -127 .. 127, times a scale in fp32: the block's largest over 127
//   fp8     E4M3 (4 bits of exponent, 3 of mantissa), times a scale in fp32: the largest over 448
//   mxfp8   E4M3, times a power of two (E8M0, one byte): the least that keeps the largest in 448,
//           as OCP's microscaling formats have it
//   int4    q of -7 .. 7 of the block rotated: each 32 elements times a Hadamard matrix, which
//           spreads a large element over all; byte j of 32 elements holds element j in its low
//           half, as q + 8, and element j + 16 in its high half
//   bf16    bfloat16, without scales
//   custom  what the functions of a program make of a block (custom.h); a byte in place of a scale
//           says whether the block is coded, holds zeros, goes exactly or is not finite
//
// A chunk encodes up to kBlocksMost elements of one piece of memory. It holds a header, the scales,
// the codes, and the elements of blocks that go exactly, one block behind the other. A block goes
// exactly, with NaN as its scale, in two cases: its largest magnitude is neither 0 nor in [2^-100,
// 2^100] (float16: up to 2^15), as with NaN and infinities, or its error is above the limit. In
// sums nothing may go exactly. There such a block has NaN as its scale too, and the receiver gets
// NaN for all its elements; a block below 2^-100 becomes 0. bf16 has no scales: each element stands
// alone there.
//
// The error of a block is its largest |x - x'| divided by its largest |x|, where x' is what the
// receiver stores. block_bound() is the upper limit of it.
//
// The encoded bytes and the decoded elements depend neither on the processor's instruction set nor
// on which thread does the work, or when.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "codec/custom.h"

namespace fsccl {

enum class BlockKind : uint8_t { int8, fp8, mxfp8, int4, bf16, custom };

inline constexpr size_t kBlocksMost = size_t{1} << 16;  // elements of a chunk
inline constexpr uint32_t kLeastBlock = 32, kMostBlock = 1024;
inline constexpr size_t kBlocksHeaderBytes = 16;

struct BlockForm {
  BlockKind kind{};
  uint32_t block = 128;                 // elements: a power of two, kLeastBlock .. kMostBlock
  const CustomCodec* custom = nullptr;  // the codec of BlockKind::custom

  size_t scale_bytes() const {
    if (kind == BlockKind::bf16) return 0;
    return kind == BlockKind::mxfp8 || kind == BlockKind::custom ? 1 : sizeof(float);
  }
  size_t blocks(size_t count) const { return (count + block - 1) / block; }
  size_t code_bytes(size_t count) const {
    if (custom)
      return count / block * custom->bytes(block) +
             (count % block ? custom->bytes(count % block) : 0);
    if (kind == BlockKind::int4) return (count + 31) / 32 * 16;
    return (count + 15) / 16 * 16 * (kind == BlockKind::bf16 ? 2 : 1);
  }
  // The bytes of a chunk of 1 .. kBlocksMost elements if no block goes exactly.
  size_t chunk_bytes(size_t count) const {
    return kBlocksHeaderBytes + blocks(count) * scale_bytes() + code_bytes(count);
  }
  // The bytes of any number of elements in one piece of memory if no block goes exactly.
  uint64_t bytes(uint64_t count) const {
    const size_t rest = count % kBlocksMost;
    return count / kBlocksMost * chunk_bytes(kBlocksMost) + (rest ? chunk_bytes(rest) : 0);
  }
};

inline bool is_block_size(uint32_t block) {
  return block >= kLeastBlock && block <= kMostBlock && (block & (block - 1)) == 0;
}
inline bool blocks_take(fsccl_dtype_t dtype) {
  return dtype == FSCCL_BFLOAT16 || dtype == FSCCL_FLOAT16 || dtype == FSCCL_FLOAT32;
}

// The largest error that a block can have if its elements are stored as `dtype`. For int4 it
// refers to the elements as they are after rotation. For custom it is what the program states.
double block_bound(const BlockForm& form, fsccl_dtype_t dtype);

// The blocks that may go exactly, and those whose error is measured.
struct BlockAudit {
  double most_error = 0;  // 0: the bound. Else all blocks are measured
  uint32_t every = 256;   // otherwise every so many-th block is measured
  uint64_t phase = 0;     // beginning with this one (audit_phase())
  uint64_t room = 0;      // bytes of exact elements at most
};

// Returns the phase of a chunk whose first block is number `block` of operation `run`. The measured
// blocks of an operation are `every` apart, and are others in each operation, so that each block is
// measured once in `every` operations (97 and `every` have no common divisor, if it is a power of
// two or any number that is not a multiple of 97).
inline uint64_t audit_phase(uint64_t run, uint64_t block, uint32_t every) {
  if (every == 0) return 0;
  return (run * 97 % every + every - block % every) % every;
}

struct BlocksWritten {
  size_t bytes = 0;  // bytes of the chunk; 0: more elements would go exactly than there is room for
  uint32_t blocks = 0, exact = 0;
  uint32_t audited = 0, beyond = 0;  // beyond: the bound, which is a defect
  float largest = 0;                 // error of those audited that go coded
  float worst = 0;                   // error of those beyond the bound
  Overrun overrun;                   // a custom codec wrote beyond its size; there is no chunk then
};

// Encodes 1 .. kBlocksMost elements of `dtype`, for which blocks_take() must hold, into `out`,
// which has room for form.chunk_bytes(count) + audit.room bytes. The ranges must not overlap.
BlocksWritten encode_blocks(const void* from, fsccl_dtype_t dtype, size_t count,
                            const BlockForm& form, const BlockAudit& audit, uint8_t* out);

// Decodes a chunk of `count` elements from at most `size` bytes. Returns the bytes of the chunk.
// Returns 0 if the chunk is damaged, or if a custom codec wrote beyond its size, in which case
// `overrun` is set; the contents of `to` are then unspecified.
size_t decode_blocks(const uint8_t* in, size_t size, void* to, fsccl_dtype_t dtype, size_t count,
                     const BlockForm& form, Overrun* overrun = nullptr);

// These fields tell what a custom codec did wrong with elements that are to be summed. The chunk is
// not valid then.
struct SumsWritten {
  float worst = 0;  // the largest error of the measured blocks if it is beyond the bound, else 0
  Overrun overrun;
};

// Encodes elements that are to be summed, as encode_blocks() does, but no block goes exactly.
// `feedback` may be null. Otherwise it holds, for each element, what encoding has lost in earlier
// sums; the encoder adds that first and stores what it loses this time. A block that is not finite
// leaves its feedback unchanged. Writes form.chunk_bytes(count) bytes to `out`. The audit is of
// custom codecs: it measures the blocks that `every` and `phase` name, and with feedback all.
SumsWritten encode_sums(const void* from, fsccl_dtype_t dtype, size_t count, const BlockForm& form,
                        float* feedback, uint8_t* out, const BlockAudit& audit = {});
// Adds a chunk to `sums`, or writes it there if `adds` is false. Returns form.chunk_bytes(count).
// Returns 0 if the chunk is damaged; `sums` is then unchanged. Also returns 0 if a custom codec
// wrote beyond its size; `overrun` is then set, and the contents of `sums` are unspecified.
size_t add_sums(const uint8_t* in, size_t size, float* sums, size_t count, const BlockForm& form,
                bool adds, Overrun* overrun = nullptr);

}  // namespace fsccl
