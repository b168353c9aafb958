// Casts and copies of the pieces of a table. A block takes one tile after another. Each thread
// issues several independent vector loads before it uses the first of them. Where the alignment
// does not allow vectors of both source and destination, neighbouring threads take neighbouring
// single elements, and each again issues several loads at a time.
#pragma once
#include "kernels/cuda/elements.cuh"

namespace fsccl::cuda {

template <class To, class From>
__device__ __forceinline__ void cast_quads(To* to, const From* from, unsigned quads) {
  constexpr unsigned kBatch = sizeof(From) == 8 ? 2 : 4;
  FSCCL_ROLLED
  for (unsigned first = threadIdx.x; first < quads; first += kBatch * kCastThreads) {
    // With these pointers, the offsets below are constants.
    const From* const source = from + 4 * static_cast<uint64_t>(first);
    To* const destination = to + 4 * static_cast<uint64_t>(first);
    Quad<From> in[kBatch] = {};
    FSCCL_UNROLL
    for (unsigned k = 0; k < kBatch; k++)
      if (k * kCastThreads < quads - first) in[k] = load_quad(source + 4 * k * kCastThreads);
    FSCCL_UNROLL
    for (unsigned k = 0; k < kBatch; k++) {
      Quad<To> out;
      FSCCL_UNROLL
      for (int i = 0; i < 4; i++) set_element(out, i, convert(element(in[k], i), To()));
      if (k * kCastThreads < quads - first) store_quad(destination + 4 * k * kCastThreads, out);
    }
  }
}

template <class To, class From>
__device__ __forceinline__ void cast_singles(To* to, const From* from, unsigned count) {
  constexpr unsigned kBatch = 8;
  FSCCL_ROLLED
  for (unsigned first = threadIdx.x; first < count; first += kBatch * kCastThreads) {
    const From* const source = from + static_cast<uint64_t>(first);
    To* const destination = to + static_cast<uint64_t>(first);
    From in[kBatch] = {};
    FSCCL_UNROLL
    for (unsigned k = 0; k < kBatch; k++)
      if (k * kCastThreads < count - first) in[k] = load_single(source + k * kCastThreads);
    FSCCL_UNROLL
    for (unsigned k = 0; k < kBatch; k++)
      if (k * kCastThreads < count - first)
        store_single(destination + k * kCastThreads, convert(in[k], To()));
  }
}

template <class To, class From>
__device__ __forceinline__ void cast_tile(uint64_t destination, uint64_t source, unsigned count) {
  To* const to = at<To>(destination);
  const From* const from = at<const From>(source);
  // The elements before the first aligned vector of the destination.
  const auto before = static_cast<unsigned>((0 - destination) % kQuadBytes<To> / sizeof(To));
  if (before >= count || (source + before * sizeof(From)) % kQuadBytes<From> != 0) {
    cast_singles(to, from, count);
    return;
  }
  const unsigned quads = (count - before) / 4, rest = count - 4 * quads;
  if (threadIdx.x < rest) {
    const unsigned i = threadIdx.x < before ? threadIdx.x : threadIdx.x + 4 * quads;
    store_single(to + i, convert(load_single(from + i), To()));
  }
  cast_quads(to + before, from + before, quads);
}

template <class From>
__device__ __forceinline__ void cast_from(const Range& piece, uint64_t destination, uint64_t source,
                                          unsigned count) {
  switch (piece.to) {
    case kFp16:
      return cast_tile<Fp16, From>(destination, source, count);
    case kBf16:
      return cast_tile<Bf16, From>(destination, source, count);
    case kFp32:
      return cast_tile<float, From>(destination, source, count);
    default:
      return cast_tile<double, From>(destination, source, count);
  }
}

// Copies with vectors. Both addresses must be equally far from a multiple of the vector's size.
template <class Vector>
__device__ __forceinline__ void copy_vectors(uint64_t destination, uint64_t source,
                                             unsigned bytes) {
  constexpr unsigned kBatch = 4, kBytes = sizeof(Vector);
  const auto gap = static_cast<unsigned>((0 - destination) % kBytes),
             before = gap < bytes ? gap : bytes;
  const unsigned vectors = (bytes - before) / kBytes, rest = bytes - vectors * kBytes;
  if (threadIdx.x < rest) {
    const unsigned i = threadIdx.x < before ? threadIdx.x : threadIdx.x + vectors * kBytes;
    __stcs(at<unsigned char>(destination) + i, __ldcs(at<const unsigned char>(source) + i));
  }
  auto* const to = at<Vector>(destination + before);
  const auto* const from = at<const Vector>(source + before);
  FSCCL_ROLLED
  for (unsigned first = threadIdx.x; first < vectors; first += kBatch * kCastThreads) {
    const Vector* const source_here = from + static_cast<uint64_t>(first);
    Vector* const destination_here = to + static_cast<uint64_t>(first);
    Vector in[kBatch] = {};
    FSCCL_UNROLL
    for (unsigned k = 0; k < kBatch; k++)
      if (k * kCastThreads < vectors - first) in[k] = __ldcs(source_here + k * kCastThreads);
    FSCCL_UNROLL
    for (unsigned k = 0; k < kBatch; k++)
      if (k * kCastThreads < vectors - first) __stcs(destination_here + k * kCastThreads, in[k]);
  }
}

__device__ __forceinline__ void copy_tile(uint64_t destination, uint64_t source, unsigned bytes) {
  const auto apart = static_cast<unsigned>(destination ^ source);
  if (apart % 16 == 0) return copy_vectors<uint4>(destination, source, bytes);
  if (apart % 8 == 0) return copy_vectors<uint2>(destination, source, bytes);
  if (apart % 4 == 0) return copy_vectors<unsigned>(destination, source, bytes);
  if (apart % 2 == 0) return copy_vectors<unsigned short>(destination, source, bytes);
  copy_vectors<unsigned char>(destination, source, bytes);
}

__device__ __forceinline__ void do_tile(const CastLaunch& launch, Tile tile) {
  const Range piece = launch.pieces[tile.piece];
  const unsigned most = piece.from == kBytes ? kCopyTile : kCastTile;
  const uint64_t first = static_cast<uint64_t>(tile.index) * most, left = piece.count - first;
  const auto count = static_cast<unsigned>(left < most ? left : most);
  const uint64_t source = launch.source_base + piece.source + first * element_bytes(piece.from);
  const uint64_t destination =
      launch.destination_base + piece.destination + first * element_bytes(piece.to);
  switch (piece.from) {
    case kFp16:
      return cast_from<Fp16>(piece, destination, source, count);
    case kBf16:
      return cast_from<Bf16>(piece, destination, source, count);
    case kFp32:
      return cast_from<float>(piece, destination, source, count);
    case kFp64:
      return cast_from<double>(piece, destination, source, count);
    default:
      return copy_tile(destination, source, count);
  }
}

}  // namespace fsccl::cuda

// Each block carries out every gridDim.x-th tile, and reads the next tile while it works on one.
extern "C" __global__ void __launch_bounds__(fsccl::cuda::kCastThreads,
                                             fsccl::cuda::kBlocksPerMultiprocessor)
    fsccl_cast(const __grid_constant__ fsccl::cuda::CastLaunch launch) {
  fsccl::cuda::Tile next = {};
  if (blockIdx.x < launch.tile_count) next = launch.tiles[blockIdx.x];
  FSCCL_ROLLED
  for (unsigned i = blockIdx.x; i < launch.tile_count; i += gridDim.x) {
    const fsccl::cuda::Tile tile = next;
    if (i + gridDim.x < launch.tile_count) next = launch.tiles[i + gridDim.x];
    fsccl::cuda::do_tile(launch, tile);
  }
}
