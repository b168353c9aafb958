// Decodes chunks of block codecs, each checked as on the host (codec/blocks.h). A chunk that is
// damaged, or was not sent because too many blocks go exactly, becomes NaN, and the state of its part
// says why.
#pragma once
#include "kernels/cuda/blocks.cuh"

namespace fsccl::cuda {

template <class T, class Codes>
__device__ __forceinline__ void decode_block(const BlocksShared& shared, const ChunkPlaces& chunk,
                                             unsigned b, T* to) {
  const unsigned lane = threadIdx.x % 32, now = chunk.elements_of(b);
  if (shared.exact[b]) {
    const unsigned char* const from =
        chunk.exact + exact_before(shared, b) * chunk.block * sizeof(T);
    FSCCL_ROLLED
    for (unsigned i = lane; i < now * sizeof(T); i += 32)
      reinterpret_cast<unsigned char*>(to)[i] = from[i];
    return;
  }
  const float scale = Codes::get(chunk.scales + b * Codes::kBytes);
  const unsigned char* const codes = chunk.codes + b * chunk.block;
  FSCCL_ROLLED
  for (unsigned i = 4 * lane; i < now; i += 128) {
    const unsigned word = word_at(codes + i);
    float x[4];
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) x[k] = Codes::decode(word >> (8 * k) & 255u) * scale;
    store_four(to, i, now, x);
  }
}

// Checks a chunk and maps its exact blocks. Returns the same for all threads of the block.
template <class Codes>
__device__ __forceinline__ bool open_chunk(BlocksShared& shared, const DecodeLaunch& launch,
                                           const ChunkPlaces& chunk, unsigned room) {
  const unsigned bytes = header_word(chunk, 2) + kChunkHeader, exact = header_word(chunk, 3);
  const bool sized = header_word(chunk, 1) == (launch.codec | launch.block << 8) &&
                     bytes >= chunk.fixed_bytes && bytes - chunk.fixed_bytes <= room;
  if (!sized || crc_of_block(shared.crc, chunk.begin + 4, bytes - 4) != header_word(chunk, 0))
    return false;
  FSCCL_ROLLED
  for (unsigned b = threadIdx.x; b < chunk.blocks; b += kCodecThreads) {
    const float scale = Codes::get(chunk.scales + b * Codes::kBytes);
    shared.exact[b] = scale != scale;
  }
  __syncthreads();
  return exact_before(shared, chunk.blocks) == exact &&
         chunk.exact_bytes(exact, shared.exact[chunk.blocks - 1]) == bytes - chunk.fixed_bytes;
}

template <class Codes>
__device__ __forceinline__ void decode_chunk(BlocksShared& shared, const DecodeLaunch& launch,
                                             const Chunk& chunk) {
  const uint32_t before = at<const uint32_t>(launch.codes_base + chunk.directory)[chunk.index];
  const bool sent = before != kNoChunk;
  bool good = sent && before <= chunk.exact_room;
  const ChunkPlaces places =
      places_of<Codes>(chunk.count, launch.block, chunk.element,
                       launch.codes_base + chunk.codes + (good ? before : 0));
  good = good && open_chunk<Codes>(shared, launch, places, chunk.exact_room - before);
  if (!good && threadIdx.x == 0) launch.states[chunk.part] = sent ? kPartDamaged : kPartNoRoom;
  with_type(chunk.element, [&](auto of_type) {
    using T = decltype(of_type);
    T* const to = at<T>(launch.elements_base + chunk.elements);
    FSCCL_ROLLED
    for (unsigned b = threadIdx.x / 32; good && b < places.blocks; b += kCodecWarps)
      decode_block<T, Codes>(shared, places, b, to + b * places.block);
    FSCCL_ROLLED
    for (unsigned i = threadIdx.x; !good && i < chunk.count; i += kCodecThreads)
      to[i] = convert(__uint_as_float(kCodecNan), T());
  });
  __syncthreads();  // the map may be written again
}

template <class Codes>
__device__ __forceinline__ void decode_chunks(BlocksShared& shared, const DecodeLaunch& launch) {
  make_crc_tables(shared.crc);
  FSCCL_ROLLED
  for (unsigned i = blockIdx.x; i < launch.chunk_count; i += gridDim.x)
    decode_chunk<Codes>(shared, launch, launch.chunks[i]);
}

}  // namespace fsccl::cuda

extern "C" __global__ void __launch_bounds__(fsccl::cuda::kCodecThreads)
    fsccl_decode(const __grid_constant__ fsccl::cuda::DecodeLaunch launch) {
  __shared__ fsccl::cuda::BlocksShared memory;
  fsccl::cuda::BlocksShared& shared = memory;
  fsccl::cuda::with_codes(launch.codec, [&](auto codes) {
    fsccl::cuda::decode_chunks<decltype(codes)>(shared, launch);
  });
}
