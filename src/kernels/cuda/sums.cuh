// Encodes elements that are to be summed, and decodes them to fp32, with the bytes and the bits of
// the host's encode_sums() and add_sums() (codec/blocks.h). No block goes exactly, so every chunk
// has its place from the start, and one launch encodes it. A block that is not finite arrives as
// NaN.
#pragma once
#include "kernels/cuda/blocks.cuh"

namespace fsccl::cuda {

constexpr unsigned kMostSummed = (127u + 100u) << 23;

// Each 32 elements times a Hadamard matrix: eight lanes have four elements each. The additions are
// those of the host, in its order. All lanes of a warp call it.
__device__ __forceinline__ void rotate(float (&x)[4]) {
  FSCCL_UNROLL
  for (unsigned lanes = 4; lanes; lanes /= 2) {
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) {
      const float other = __shfl_xor_sync(~0u, x[k], lanes);
      x[k] = threadIdx.x & lanes ? other - x[k] : x[k] + other;
    }
  }
  FSCCL_UNROLL
  for (int stride = 2; stride; stride /= 2) {
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) {
      if (k & stride) continue;
      const float a = x[k], b = x[k + stride];
      x[k] = a + b;
      x[k + stride] = a - b;
    }
  }
}

__device__ __forceinline__ void rotate_back(float (&x)[4]) {
  rotate(x);
  FSCCL_UNROLL
  for (int k = 0; k < 4; k++) x[k] *= 1.0f / 32;
}

// ---- The kinds of codes. encode() writes the codes of four elements, from number `i` of a block
// on, which are multiplied by `inverse`; decode() reads them. A block of `end` elements has
// code_bytes(end) bytes of codes, and what lies beyond them is neither written nor read. All lanes
// of a warp call them.

struct Int8Sums : Int8Codes {
  static constexpr bool kRotates = false;
  static __device__ __forceinline__ void encode(unsigned char* codes, unsigned i, unsigned end,
                                                const float (&x)[4], float inverse) {
    unsigned word = 0;
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) word |= Int8Codes::encode(x[k] * inverse) << (8 * k);
    if (i < code_bytes(end)) *reinterpret_cast<unsigned*>(codes + i) = word;
  }
  static __device__ __forceinline__ void decode(const unsigned char* codes, unsigned i,
                                                unsigned end, float (&x)[4]) {
    const unsigned word = i < code_bytes(end) ? *reinterpret_cast<const unsigned*>(codes + i) : 0u;
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) x[k] = Int8Codes::decode(word >> (8 * k) & 255u);
  }
};

// Byte j of 32 elements holds element j in its low half and element j + 16 in its high half, each
// as q + 8.
struct Int4Sums : FloatScale {
  static constexpr bool kRotates = true;
  static __device__ __forceinline__ unsigned code_bytes(unsigned count) {
    return (count + 31) / 32 * 16;
  }
  static __device__ __forceinline__ Scale scale(unsigned largest) {
    return scale_of_largest(largest, 7.0f);
  }
  static __device__ __forceinline__ void encode(unsigned char* codes, unsigned i, unsigned end,
                                                const float (&x)[4], float inverse) {
    unsigned own = 0;
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++)
      own |= static_cast<unsigned>(__float2int_rn(x[k] * inverse) + 8) << (8 * k);
    const unsigned high = __shfl_xor_sync(~0u, own, 4);
    if (i < (end + 31) / 32 * 32 && (i & 16) == 0)
      *reinterpret_cast<unsigned*>(codes + i / 32 * 16 + i % 16) = own | high << 4;
  }
  static __device__ __forceinline__ void decode(const unsigned char* codes, unsigned i,
                                                unsigned end, float (&x)[4]) {
    const bool there = i < (end + 31) / 32 * 32;
    const unsigned word =
        there ? *reinterpret_cast<const unsigned*>(codes + i / 32 * 16 + i % 16) : 0x88888888u;
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) {
      const unsigned code = word >> (8 * k + (i & 16 ? 4 : 0)) & 15u;
      x[k] = static_cast<float>(static_cast<int>(code) - 8);
    }
  }
};

struct Bf16Sums {
  static constexpr bool kRotates = false;
  static constexpr unsigned kBytes = 0;
  static __device__ __forceinline__ unsigned code_bytes(unsigned count) {
    return (count + 15) / 16 * 32;
  }
  static __device__ __forceinline__ Scale scale(unsigned) { return {1, 1}; }
  static __device__ __forceinline__ void put(unsigned char*, float) {}
  static __device__ __forceinline__ float get(const unsigned char*) { return 1; }
  static __device__ __forceinline__ void encode(unsigned char* codes, unsigned i, unsigned end,
                                                const float (&x)[4], float) {
    if (2 * i >= code_bytes(end)) return;
    FSCCL_UNROLL
    for (int k = 0; k < 4; k += 2)
      *reinterpret_cast<unsigned*>(codes + 2 * (i + k)) =
          convert(x[k], Bf16()).bits | static_cast<unsigned>(convert(x[k + 1], Bf16()).bits) << 16;
  }
  static __device__ __forceinline__ void decode(const unsigned char* codes, unsigned i,
                                                unsigned end, float (&x)[4]) {
    FSCCL_UNROLL
    for (int k = 0; k < 4; k += 2) {
      const unsigned word =
          2 * i < code_bytes(end) ? *reinterpret_cast<const unsigned*>(codes + 2 * (i + k)) : 0u;
      x[k] = __uint_as_float(word << 16);
      x[k + 1] = __uint_as_float(word & 0xffff0000u);
    }
  }
};

template <class Act>
__device__ __forceinline__ void with_sums(uint32_t codec, const Act& act) {
  if (codec == kCodecInt8)
    act(Int8Sums());
  else if (codec == kCodecInt4)
    act(Int4Sums());
  else
    act(Bf16Sums());
}

// ---- Blocks

// Four elements from number `i` on, with what earlier sums have lost of them. A NaN keeps its bits,
// which an addition would change.
template <class T>
__device__ __forceinline__ void load_sums(const T* from, const float* feedback, unsigned i,
                                          unsigned count, float (&x)[4]) {
  load_four(from, i, count, x);
  if (!feedback) return;
  FSCCL_UNROLL
  for (unsigned k = 0; k < 4; k++)
    if (i + k < count && x[k] == x[k]) x[k] += feedback[i + k];
}

// Decodes four elements, multiplied by the scale, as the receiver does.
template <class Codes>
__device__ __forceinline__ void decode_sums(const unsigned char* codes, unsigned i, unsigned end,
                                            float scale, float (&x)[4]) {
  Codes::decode(codes, i, end, x);
  FSCCL_UNROLL
  for (int k = 0; k < 4; k++) x[k] *= scale;
  if (Codes::kRotates) rotate_back(x);
}

// Encodes block `b` of a chunk, by a warp, and updates the feedback unless that is null.
template <class T, class Codes>
__device__ __forceinline__ void encode_sum_block(const T* from, float* feedback,
                                                 const ChunkPlaces& chunk, unsigned b) {
  const unsigned lane = threadIdx.x % 32, now = chunk.elements_of(b);
  float x[4];
  unsigned largest = 0;
  FSCCL_ROLLED
  for (unsigned begin = 0; begin < now; begin += 128) {
    load_sums(from, feedback, begin + 4 * lane, now, x);
    if (Codes::kRotates) rotate(x);
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) {
      const unsigned magnitude = __float_as_uint(x[k]) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  largest = __reduce_max_sync(~0u, largest);
  const bool finite = largest <= kMostSummed;
  const Scale scale = Codes::scale(finite && largest >= kLeastMagnitude ? largest : 0);
  if (lane == 0)
    Codes::put(chunk.scales + b * Codes::kBytes, finite ? scale.value : __uint_as_float(kCodecNan));
  unsigned char* const codes = chunk.codes + Codes::code_bytes(b * chunk.block);
  FSCCL_ROLLED
  for (unsigned begin = 0; begin < now; begin += 128) {
    const unsigned i = begin + 4 * lane;
    float coded[4];
    load_sums(from, feedback, i, now, x);
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) coded[k] = x[k];
    if (Codes::kRotates) rotate(coded);
    if (!finite && Codes::kBytes) {
      if (i < Codes::code_bytes(now)) *reinterpret_cast<unsigned*>(codes + i) = 0;
      continue;
    }
    Codes::encode(codes, i, now, coded, scale.inverse);
    if (!feedback || !finite) continue;
    __syncwarp(~0u);  // the codes of other lanes are read
    decode_sums<Codes>(codes, i, now, scale.value, coded);
    FSCCL_UNROLL
    for (unsigned k = 0; k < 4; k++)
      if (i + k < now) feedback[i + k] = x[k] - coded[k];
  }
}

template <class Codes>
__device__ __forceinline__ void decode_sum_block(const ChunkPlaces& chunk, unsigned b, float* to) {
  const unsigned now = chunk.elements_of(b);
  const float scale = Codes::get(chunk.scales + b * Codes::kBytes);
  const unsigned char* const codes = chunk.codes + Codes::code_bytes(b * chunk.block);
  FSCCL_ROLLED
  for (unsigned begin = 0; begin < now; begin += 128) {
    const unsigned i = begin + 4 * (threadIdx.x % 32);
    float x[4];
    decode_sums<Codes>(codes, i, now, scale, x);
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) x[k] = plain(x[k]);  // also if the scale is NaN
    store_four(to, i, now, x);
  }
}

// ---- Chunks

template <class Codes>
__device__ __forceinline__ void encode_sum_chunk(CrcShared& shared, const SumsLaunch& launch,
                                                 const SumChunk& chunk) {
  const ChunkPlaces places =
      places_of<Codes>(chunk.count, launch.block, chunk.element, launch.codes_base + chunk.codes);
  float* const feedback = launch.feedback ? at<float>(launch.feedback) + chunk.feedback : nullptr;
  with_type(chunk.element, [&](auto of_type) {
    using T = decltype(of_type);
    const T* const from = at<const T>(launch.elements_base + chunk.elements);
    FSCCL_ROLLED
    for (unsigned b = threadIdx.x / 32; b < places.blocks; b += kCodecWarps)
      encode_sum_block<T, Codes>(from + b * places.block,
                                 feedback ? feedback + b * places.block : nullptr, places, b);
  });
  close_chunk(shared, launch.codec | launch.block << 8, places, 0, 0);
}

template <class Codes>
__device__ __forceinline__ void decode_sum_chunk(CrcShared& shared, const SumsLaunch& launch,
                                                 const SumChunk& chunk) {
  const ChunkPlaces places =
      places_of<Codes>(chunk.count, launch.block, kFp32, launch.codes_base + chunk.codes);
  const bool sized = header_word(places, 1) == (launch.codec | launch.block << 8) &&
                     header_word(places, 2) + kChunkHeader == places.fixed_bytes &&
                     header_word(places, 3) == 0;
  const bool good = sized && crc_of_block(shared, places.begin + 4, places.fixed_bytes - 4) ==
                                 header_word(places, 0);
  if (!good && threadIdx.x == 0) launch.states[chunk.part] = kPartDamaged;
  float* const to = at<float>(launch.elements_base + chunk.elements);
  FSCCL_ROLLED
  for (unsigned b = threadIdx.x / 32; good && b < places.blocks; b += kCodecWarps)
    decode_sum_block<Codes>(places, b, to + b * places.block);
  FSCCL_ROLLED
  for (unsigned i = threadIdx.x; !good && i < chunk.count; i += kCodecThreads)
    to[i] = __uint_as_float(kCodecNan);
}

// Calls act(codes, chunk) for the chunks of this block of threads.
template <class Act>
__device__ __forceinline__ void for_sum_chunks(CrcShared& shared, const SumsLaunch& launch,
                                               const Act& act) {
  make_crc_tables(shared);
  with_sums(launch.codec, [&](auto codes) {
    FSCCL_ROLLED
    for (unsigned i = blockIdx.x; i < launch.chunk_count; i += gridDim.x) {
      act(codes, launch.chunks[i]);
      __syncthreads();
    }
  });
}

}  // namespace fsccl::cuda

extern "C" __global__ void __launch_bounds__(fsccl::cuda::kCodecThreads)
    fsccl_encode_sums(const __grid_constant__ fsccl::cuda::SumsLaunch launch) {
  __shared__ fsccl::cuda::CrcShared memory;
  fsccl::cuda::CrcShared& shared = memory;
  fsccl::cuda::for_sum_chunks(shared, launch, [&](auto codes, const fsccl::cuda::SumChunk& chunk) {
    fsccl::cuda::encode_sum_chunk<decltype(codes)>(shared, launch, chunk);
  });
}

extern "C" __global__ void __launch_bounds__(fsccl::cuda::kCodecThreads)
    fsccl_decode_sums(const __grid_constant__ fsccl::cuda::SumsLaunch launch) {
  __shared__ fsccl::cuda::CrcShared memory;
  fsccl::cuda::CrcShared& shared = memory;
  fsccl::cuda::for_sum_chunks(shared, launch, [&](auto codes, const fsccl::cuda::SumChunk& chunk) {
    fsccl::cuda::decode_sum_chunk<decltype(codes)>(shared, launch, chunk);
  });
}
