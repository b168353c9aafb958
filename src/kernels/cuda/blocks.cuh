// The blocks of a chunk. A warp encodes or decodes a block at a time. A map of the blocks that go exactly
// lies in shared memory, because the place of an exact block follows from the exact blocks
// before it.
#pragma once
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/crc32c.cuh"

namespace fsccl::cuda {

constexpr unsigned kCodecWarps = kCodecThreads / 32, kMostBlocks = kChunkMost / kLeastCodecBlock;

// Blocks that a warp has measured in a chunk. Only the warp's lane 0 writes them.
struct WarpFigures {
  unsigned measured, beyond, largest;
};

struct BlocksShared {
  CrcShared crc;
  WarpFigures warps[kCodecWarps];
  unsigned char exact[kMostBlocks];          // 1: the block goes exactly
  unsigned long long lanes[32][2], sums[2];  // exact bytes: of the chunks before, and of all
};

// The places of a chunk's parts, and its sizes.
struct ChunkPlaces {
  unsigned count, block, blocks, element;  // element: bytes
  unsigned code_bytes, fixed_bytes;        // fixed_bytes: of the chunk, without exact elements
  unsigned char *begin, *scales, *codes, *exact;
  __device__ __forceinline__ unsigned elements_of(unsigned b) const {
    return b + 1 < blocks ? block : count - b * block;
  }
  // Bytes of the exact elements of the first `exact_blocks` exact blocks. The last block of the
  // chunk may be shorter; `with_last` says that it is among them.
  __device__ __forceinline__ unsigned exact_bytes(unsigned exact_blocks, bool with_last) const {
    const unsigned shorter = with_last ? block - elements_of(blocks - 1) : 0;
    return (exact_blocks * block - shorter) * element;
  }
};

template <class Codes>
__device__ __forceinline__ ChunkPlaces places_of(unsigned count, unsigned block, uint32_t element,
                                                 uint64_t begin) {
  ChunkPlaces made;
  made.count = count;
  made.block = block;
  made.blocks = (count + block - 1) / block;
  made.element = element_bytes(element);
  made.code_bytes = Codes::code_bytes(count);
  made.begin = at<unsigned char>(begin);
  made.scales = made.begin + kChunkHeader;
  made.codes = made.scales + made.blocks * Codes::kBytes;
  made.exact = made.codes + made.code_bytes;
  made.fixed_bytes = static_cast<unsigned>(made.exact - made.begin);
  return made;
}

// Returns the number of exact blocks before block `b`. All lanes of a warp call it.
__device__ __forceinline__ unsigned exact_before(const BlocksShared& shared, unsigned b) {
  unsigned found = 0;
  FSCCL_ROLLED
  for (unsigned k = threadIdx.x % 32; k < b; k += 32) found += shared.exact[k];
  return __reduce_add_sync(~0u, found);
}

__device__ __forceinline__ uint32_t header_word(const ChunkPlaces& chunk, unsigned k) {
  return word_at(chunk.begin + 4 * k);
}
__device__ __forceinline__ void put_word(unsigned char* to, uint32_t word) {
  FSCCL_UNROLL
  for (int k = 0; k < 4; k++) to[k] = static_cast<unsigned char>(word >> (8 * k));
}

// Writes the header of a chunk, and its checksum. `form` is the codec, and the block above it.
__device__ __forceinline__ void close_chunk(CrcShared& shared, uint32_t form,
                                            const ChunkPlaces& chunk, unsigned exact_bytes,
                                            unsigned exact_blocks) {
  const unsigned bytes = chunk.fixed_bytes + exact_bytes;
  if (threadIdx.x == 0) {
    put_word(chunk.begin + 4, form);
    put_word(chunk.begin + 8, bytes - kChunkHeader);
    put_word(chunk.begin + 12, exact_blocks);
  }
  __syncthreads();
  const unsigned sum = crc_of_block(shared, chunk.begin + 4, bytes - 4);
  if (threadIdx.x == 0) put_word(chunk.begin, sum);
}

// Calls act(T()) with the type of a chunk's elements.
template <class Act>
__device__ __forceinline__ void with_type(uint32_t element, const Act& act) {
  if (element == kBf16)
    act(Bf16());
  else if (element == kFp16)
    act(Fp16());
  else
    act(float());
}
template <class Act>
__device__ __forceinline__ void with_codes(uint32_t codec, const Act& act) {
  if (codec == kCodecInt8)
    act(Int8Codes());
  else if (codec == kCodecFp8)
    act(Fp8Codes());
  else
    act(MxFp8Codes());
}

}  // namespace fsccl::cuda
