// Encodes elements as chunks of block codecs (codec/blocks.h), byte for byte as the host does. A
// block of threads encodes one chunk after the other. Chunks lie end to end, so the place of a chunk
// depends on the exact elements of those before it, which the first launch counts. In the second
// launch each chunk adds up these counts, and is encoded anew at its place if there are any.
#pragma once
#include "kernels/cuda/blocks.cuh"

namespace fsccl::cuda {

// Encodes block `b` of a chunk. Its lane 0 notes whether the block goes exactly.
template <class T, class Codes>
__device__ __forceinline__ void encode_block(BlocksShared& shared, const T* from,
                                             const ChunkPlaces& chunk, unsigned b) {
  const unsigned lane = threadIdx.x % 32, now = chunk.elements_of(b);
  float x[4];
  unsigned largest = 0;
  FSCCL_ROLLED
  for (unsigned i = 4 * lane; i < now; i += 128) {
    load_four(from, i, now, x);
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) {
      const unsigned magnitude = __float_as_uint(x[k]) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  largest = __reduce_max_sync(~0u, largest);
  const bool fits = can_encode<T>(largest);
  const Scale scale = fits ? Codes::scale(largest) : Scale{0, __uint_as_float(kCodecNan)};
  unsigned char* const codes = chunk.codes + b * chunk.block;
  FSCCL_ROLLED
  for (unsigned i = 4 * lane; i < (now + 15) / 16 * 16; i += 128) {
    load_four(from, i, now, x);
    unsigned word = 0;
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) word |= fits ? Codes::encode(x[k] * scale.inverse) << (8 * k) : 0u;
    if (reinterpret_cast<uint64_t>(codes) % 4 == 0)
      *reinterpret_cast<unsigned*>(codes + i) = word;
    else
      put_word(codes + i, word);
  }
  if (lane != 0) return;
  Codes::put(chunk.scales + b * Codes::kBytes, scale.value);
  shared.exact[b] = !fits;
}

// Copies the elements of the exact blocks behind the codes.
template <class T>
__device__ __forceinline__ void put_exact(const BlocksShared& shared, const T* elements,
                                          const ChunkPlaces& chunk) {
  FSCCL_ROLLED
  for (unsigned b = threadIdx.x / 32; b < chunk.blocks; b += kCodecWarps) {
    if (!shared.exact[b]) continue;
    unsigned char* const to = chunk.exact + exact_before(shared, b) * chunk.block * sizeof(T);
    const auto* const from = reinterpret_cast<const unsigned char*>(elements + b * chunk.block);
    FSCCL_ROLLED
    for (unsigned i = threadIdx.x % 32; i < chunk.elements_of(b) * sizeof(T); i += 32)
      to[i] = from[i];
  }
}

// Encodes the blocks of a chunk, and with `exact` copies the elements that go exactly. A barrier of
// the block of threads is behind the writes of all threads.
template <class Codes>
__device__ __forceinline__ void encode_chunk(BlocksShared& shared, uint64_t elements, uint32_t type,
                                             const ChunkPlaces& chunk, bool exact) {
  with_type(type, [&](auto of_type) {
    using T = decltype(of_type);
    const T* const from = at<const T>(elements);
    FSCCL_ROLLED
    for (unsigned b = threadIdx.x / 32; b < chunk.blocks; b += kCodecWarps)
      encode_block<T, Codes>(shared, from + b * chunk.block, chunk, b);
    __syncthreads();
    if (!exact) return;
    put_exact(shared, from, chunk);
    __syncthreads();
  });
}

// Adds up the exact bytes of the chunks before chunk `index`, and those of all chunks.
__device__ __forceinline__ void add_exact(BlocksShared& shared, const EncodeLaunch& launch,
                                          unsigned index) {
  if (threadIdx.x < 32) {
    unsigned long long before = 0, all = 0;
    FSCCL_ROLLED
    for (unsigned k = threadIdx.x; k < launch.chunk_count; k += 32) {
      all += launch.exact[k];
      before += k < index ? launch.exact[k] : 0;
    }
    shared.lanes[threadIdx.x][0] = before;
    shared.lanes[threadIdx.x][1] = all;
    __syncwarp(~0u);
    if (threadIdx.x < 2) {
      unsigned long long sum = 0;
      FSCCL_ROLLED
      for (int k = 0; k < 32; k++) sum += shared.lanes[k][threadIdx.x];
      shared.sums[threadIdx.x] = sum;
    }
  }
  __syncthreads();
}

template <class Codes>
__device__ __forceinline__ void encode_chunks(BlocksShared& shared, const EncodeLaunch& launch) {
  if (launch.closes) make_crc_tables(shared.crc);
  FSCCL_ROLLED
  for (unsigned i = blockIdx.x; i < launch.chunk_count; i += gridDim.x) {
    const Chunk chunk = launch.chunks[i];
    const uint64_t elements = launch.elements_base + chunk.elements,
                   codes = launch.codes_base + chunk.codes;
    if (!launch.closes) {
      const ChunkPlaces places = places_of<Codes>(chunk.count, launch.block, chunk.element, codes);
      encode_chunk<Codes>(shared, elements, chunk.element, places, false);
      if (threadIdx.x < 32) {
        const unsigned blocks = exact_before(shared, places.blocks);
        if (threadIdx.x == 0)
          launch.exact[i] = places.exact_bytes(blocks, shared.exact[places.blocks - 1]);
      }
      __syncthreads();  // the map may be written again
      continue;
    }
    add_exact(shared, launch, i);
    const unsigned long long before = shared.sums[0], all = shared.sums[1];
    const bool fits = all <= chunk.exact_room;
    if (threadIdx.x == 0)
      at<uint32_t>(launch.codes_base + chunk.directory)[chunk.index] =
          fits ? static_cast<uint32_t>(before) : kNoChunk;
    if (fits) {
      const ChunkPlaces places =
          places_of<Codes>(chunk.count, launch.block, chunk.element, codes + before);
      unsigned exact_blocks = 0;
      if (all) {
        encode_chunk<Codes>(shared, elements, chunk.element, places, true);
        exact_blocks = exact_before(shared, places.blocks);
      }
      close_chunk(shared.crc, launch.codec | launch.block << 8, places, launch.exact[i],
                  exact_blocks);
    }
    __syncthreads();  // the sums and the map may be written again
  }
}

}  // namespace fsccl::cuda

extern "C" __global__ void __launch_bounds__(fsccl::cuda::kCodecThreads)
    fsccl_encode(const __grid_constant__ fsccl::cuda::EncodeLaunch launch) {
  __shared__ fsccl::cuda::BlocksShared memory;
  fsccl::cuda::BlocksShared& shared = memory;
  fsccl::cuda::with_codes(launch.codec, [&](auto codes) {
    fsccl::cuda::encode_chunks<decltype(codes)>(shared, launch);
  });
}
