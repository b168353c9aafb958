// Encodes elements as chunks of block codecs (codec/blocks.h), byte for byte as the host does. A
// block of threads encodes one chunk after the other. Chunks lie end to end, so the place of a chunk
// depends on the exact elements of those before it, which the first launch counts. In the second
// launch each chunk adds up these counts, and is encoded anew at its place if there are any.
// Each warp has one codec block. In reductions nothing goes exactly, so one launch is enough.
#pragma once
#include "kernels/cuda/blocks.cuh"

namespace fsccl::cuda {

// Returns the error of a block that is encoded with this scale: the largest |x - x'| of its elements
// over the largest |x|, where x' is what a decoder stores as T. All lanes of a warp call it.
template <class T, class Codes>
__device__ __forceinline__ float error_of(const T* from, unsigned count, unsigned largest,
                                          Scale scale) {
  unsigned most = 0;
  FSCCL_ROLLED
  for (unsigned i = 4 * (threadIdx.x % 32); i < count; i += 128) {
    float x[4];
    load_four(from, i, count, x);
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) {
      const float decoded = Codes::decode(Codes::encode(x[k] * scale.inverse)) * scale.value;
      const float lost = x[k] - convert(convert(decoded, T()), float());
      const unsigned magnitude = __float_as_uint(lost) & 0x7fffffffu;
      most = magnitude > most ? magnitude : most;
    }
  }
  most = __reduce_max_sync(~0u, most);
  return most == 0 ? 0.0f : __uint_as_float(most) / __uint_as_float(largest);
}

// Returns true if block `b` of a chunk is measured.
__device__ __forceinline__ bool is_measured(const EncodeLaunch& launch, const Chunk& chunk,
                                            unsigned b) {
  const unsigned every = launch.measure_every, phase = launch.measure_phase;
  if (launch.measure_all) return true;
  if (every == 0) return false;
  const unsigned before = chunk.first_block % every;
  const unsigned first = before <= phase ? phase - before : phase + (every - before);
  return b >= first && (b - first) % every == 0;
}

// Measures block `b` of a chunk if the launch says so. Returns false if the block's error is too
// large, so that it has to go exactly. All lanes of a warp call it.
template <class T, class Codes>
__device__ __forceinline__ bool is_near(WarpFigures& warp, const EncodeLaunch& launch,
                                        const Chunk& chunk, const T* from, unsigned count,
                                        unsigned b, unsigned largest, Scale scale) {
  if (!is_measured(launch, chunk, b)) return true;
  const float error = error_of<T, Codes>(from, count, largest, scale);
  const float bound = launch.bounds[chunk.element];
  const bool near = error <= (launch.measure_all ? launch.most_error : bound);
  if (threadIdx.x % 32 == 0) {
    warp.measured++;
    warp.beyond += error > bound;
    if (near && __float_as_uint(error) > warp.largest) warp.largest = __float_as_uint(error);
  }
  return near;
}

// Encodes block `b` of a chunk. Its lane 0 notes whether the block goes exactly.
template <class T, class Codes>
__device__ __forceinline__ void encode_block(BlocksShared& shared, const EncodeLaunch& launch,
                                             const Chunk& given, const T* from,
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
  bool fits = can_encode<T>(largest);
  Scale scale = fits ? Codes::scale(largest) : Scale{0, 0};
  fits = fits && is_near<T, Codes>(shared.warps[threadIdx.x / 32], launch, given, from, now, b,
                                   largest, scale);
  if (!fits) scale.value = __uint_as_float(kCodecNan);
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
__device__ __forceinline__ void encode_chunk(BlocksShared& shared, const EncodeLaunch& launch,
                                             const Chunk& given, const ChunkPlaces& chunk,
                                             bool exact) {
  if (threadIdx.x % 32 == 0) shared.warps[threadIdx.x / 32] = {0, 0, 0};
  with_type(given.element, [&](auto of_type) {
    using T = decltype(of_type);
    const T* const from = at<const T>(launch.elements_base + given.elements);
    FSCCL_ROLLED
    for (unsigned b = threadIdx.x / 32; b < chunk.blocks; b += kCodecWarps)
      encode_block<T, Codes>(shared, launch, given, from + b * chunk.block, chunk, b);
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
      all += launch.found[k].exact_bytes;
      before += k < index ? launch.found[k].exact_bytes : 0;
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

// Returns what thread 0 tells of a chunk's blocks after all warps have encoded theirs.
__device__ __forceinline__ ChunkFigures figures_of(const BlocksShared& shared, unsigned exact,
                                                   unsigned exact_bytes) {
  ChunkFigures sum{exact_bytes, exact, 0, 0, 0};
  FSCCL_ROLLED
  for (unsigned w = 0; w < kCodecWarps; w++) {
    sum.measured += shared.warps[w].measured;
    sum.beyond += shared.warps[w].beyond;
    sum.largest = shared.warps[w].largest > sum.largest ? shared.warps[w].largest : sum.largest;
  }
  return sum;
}

// Adds the figures of all chunks to those of the launch. A warp calls it.
__device__ __forceinline__ void tell_figures(const EncodeLaunch& launch) {
  unsigned blocks = 0, exact = 0, measured = 0, beyond = 0, largest = 0;
  FSCCL_ROLLED
  for (unsigned k = threadIdx.x; k < launch.chunk_count; k += 32) {
    const ChunkFigures found = launch.found[k];
    blocks += (launch.chunks[k].count + launch.block - 1) / launch.block;
    exact += found.exact;
    measured += found.measured;
    beyond += found.beyond;
    largest = found.largest > largest ? found.largest : largest;
  }
  blocks = __reduce_add_sync(~0u, blocks);
  exact = __reduce_add_sync(~0u, exact);
  measured = __reduce_add_sync(~0u, measured);
  beyond = __reduce_add_sync(~0u, beyond);
  largest = __reduce_max_sync(~0u, largest);
  if (threadIdx.x != 0) return;
  launch.figures->blocks += blocks;
  launch.figures->exact += exact;
  launch.figures->measured += measured;
  launch.figures->beyond += beyond;
  if (largest > launch.figures->largest) launch.figures->largest = largest;
}

template <class Codes>
__device__ __forceinline__ void encode_chunks(BlocksShared& shared, const EncodeLaunch& launch) {
  if (launch.closes && launch.figures && blockIdx.x == 0 && threadIdx.x < 32) tell_figures(launch);
  if (launch.closes) make_crc_tables(shared.crc);
  FSCCL_ROLLED
  for (unsigned i = blockIdx.x; i < launch.chunk_count; i += gridDim.x) {
    const Chunk& chunk = launch.chunks[i];
    const uint64_t codes = launch.codes_base + chunk.codes;
    if (!launch.closes) {
      const ChunkPlaces places = places_of<Codes>(chunk.count, launch.block, chunk.element, codes);
      encode_chunk<Codes>(shared, launch, chunk, places, false);
      if (threadIdx.x < 32) {
        const unsigned blocks = exact_before(shared, places.blocks);
        if (threadIdx.x == 0)
          launch.found[i] = figures_of(shared, blocks,
                                       places.exact_bytes(blocks, shared.exact[places.blocks - 1]));
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
        encode_chunk<Codes>(shared, launch, chunk, places, true);
        exact_blocks = exact_before(shared, places.blocks);
      }
      close_chunk(shared.crc, launch.codec | launch.block << 8, places, launch.found[i].exact_bytes,
                  exact_blocks);
    }
    __syncthreads();  // the sums and the map may be written again
  }
}

}  // namespace fsccl::cuda

extern "C" __global__ void __launch_bounds__(fsccl::cuda::kCodecThreads,
                                             fsccl::cuda::kBlocksPerMultiprocessor)
    fsccl_encode(const __grid_constant__ fsccl::cuda::EncodeLaunch launch) {
  __shared__ fsccl::cuda::BlocksShared memory;
  fsccl::cuda::BlocksShared& shared = memory;
  fsccl::cuda::with_codes(launch.codec, [&](auto codes) {
    fsccl::cuda::encode_chunks<decltype(codes)>(shared, launch);
  });
}
