// The reduce of n sources with its epilogue, and its norm (norm.cuh), in one launch, with the
// host's bits.
//
// A thread has 64 bytes of loads under way before it uses the first, as in cast.cuh. At least five
// blocks fit a multiprocessor. How many do fit is asked of the driver: a reduce without a norm has
// no adding warp, so more may fit.
#pragma once
#include "kernels/cuda/norm.cuh"

namespace fsccl::cuda {

// One worker's share of a stage is 64 bytes in the accumulator's type. The worker holds all of its
// elements at once if they are loaded as vectors, and else half of them.
template <class A>
inline constexpr unsigned kOfWorker = 64 / sizeof(A);
template <bool kVectors, class A>
inline constexpr unsigned kHeld = kVectors ? kOfWorker<A> : kOfWorker<A> / 2;
template <class A>
inline constexpr unsigned kStage = kOfWorker<A> * kWorkers;
static_assert(kReduceTile % kStage<float> == 0 && kStage<double> % kChains == 0 &&
              kStage<float> * sizeof(float) == kStageBytes);

// The j-th element of a worker is element place(thread) + step(j) of the stage. With vectors a
// worker has four elements in a row, otherwise one, so that neighbouring threads access
// neighbouring memory. The second summand is a constant after loops are unrolled.
template <bool kVectors>
__device__ __forceinline__ unsigned place(unsigned thread) {
  return kVectors ? thread * 4 : thread;
}
template <bool kVectors>
__device__ __forceinline__ constexpr unsigned step(unsigned j) {
  return kVectors ? j / 4 * kWorkers * 4 + j % 4 : j * kWorkers;
}

// Loads the elements of one worker, the first of which is at `mine`. From `mine` to the end of the
// stage there are `left` elements; single loads give 0 beyond it.
template <bool kVectors, class T, class A>
__device__ __forceinline__ void load(const T* mine, unsigned left, A (&to)[kHeld<kVectors, A>]) {
  if constexpr (kVectors) {
    Quad<T> in[kHeld<kVectors, A> / 4];
    FSCCL_UNROLL
    for (unsigned k = 0; k < kHeld<kVectors, A> / 4; k++)
      in[k] = load_quad(mine + step<true>(4 * k));
    FSCCL_UNROLL
    for (unsigned j = 0; j < kHeld<kVectors, A>; j++)
      to[j] = widen<A>(element(in[j / 4], static_cast<int>(j % 4)));
  } else {
    FSCCL_UNROLL
    for (unsigned j = 0; j < kHeld<kVectors, A>; j++)
      to[j] = step<false>(j) < left ? widen<A>(load_single(mine + step<false>(j))) : A(0);
  }
}

// Sums the sources' elements at `offset` behind every base. Vectors of 16-bit elements are loaded
// from two sources at a time, so that as many bytes are under way as with 32-bit elements.
template <bool kVectors, class From, class A>
__device__ __forceinline__ void add_sources(const ReduceLaunch& launch, uint64_t offset,
                                            unsigned left, A (&sum)[kHeld<kVectors, A>]) {
  const auto source = [&](unsigned s) {
    return at<const From>(
        (launch.sources <= kBasesInside ? launch.bases[s] : launch.more_bases[s]) + offset);
  };
  FSCCL_UNROLL
  // The sum begins with -0, because -0 + x is x for every x, +0 and -0 included.
  for (unsigned j = 0; j < kHeld<kVectors, A>; j++) sum[j] = A(-0.0);
  unsigned s = 0;
  A first[kHeld<kVectors, A>];
  if constexpr (kVectors && sizeof(From) == 2) {
    FSCCL_ROLLED
    for (; s + 1 < launch.sources; s += 2) {
      A second[kHeld<kVectors, A>];
      load<kVectors>(source(s), left, first);
      load<kVectors>(source(s + 1), left, second);
      FSCCL_UNROLL
      for (unsigned j = 0; j < kHeld<kVectors, A>; j++) sum[j] = sum[j] + first[j] + second[j];
    }
  }
  FSCCL_ROLLED
  for (; s < launch.sources; s++) {
    load<kVectors>(source(s), left, first);
    FSCCL_UNROLL
    for (unsigned j = 0; j < kHeld<kVectors, A>; j++) sum[j] += first[j];
  }
}

// The quotient of floats is taken in fp64, which has enough bits that rounding it to fp32 gives the
// correctly rounded quotient. (Ways with fewer instructions spill registers.)
__device__ __forceinline__ double divided(double x, double divisor) { return x / divisor; }
__device__ __forceinline__ float divided(float x, double divisor) {
  return static_cast<float>(static_cast<double>(x) / divisor);
}

// Adds the old value if the launch accumulates, rounds and stores. With a norm, what was stored is
// written to `deposit`, too.
template <bool kVectors, class To, class A>
__device__ __forceinline__ void finish(const ReduceLaunch& launch, To* mine, unsigned left,
                                       A (&sum)[kHeld<kVectors, A>], A* deposit) {
  if (launch.accumulate) {
    A old[kHeld<kVectors, A>];
    load<kVectors>(static_cast<const To*>(mine), left, old);
    FSCCL_UNROLL
    for (unsigned j = 0; j < kHeld<kVectors, A>; j++) sum[j] = old[j] + sum[j];
  }
  if constexpr (kVectors) {
    FSCCL_UNROLL
    for (unsigned k = 0; k < kHeld<kVectors, A> / 4; k++) {
      Quad<To> out;
      Quad<A> back;
      FSCCL_UNROLL
      for (int i = 0; i < 4; i++) {
        const To rounded = convert(plain(sum[4 * k + static_cast<unsigned>(i)]), To());
        set_element(out, i, rounded);
        set_element(back, i, widen<A>(rounded));
      }
      store_quad(mine + step<true>(4 * k), out);
      if (launch.norm) {
        auto* const words = reinterpret_cast<uint4*>(deposit + step<true>(4 * k));
        FSCCL_UNROLL
        for (unsigned w = 0; w < sizeof(A); w += 4)
          words[w / 4] =
              make_uint4(back.words[w], back.words[w + 1], back.words[w + 2], back.words[w + 3]);
      }
    }
  } else {
    FSCCL_UNROLL
    for (unsigned j = 0; j < kHeld<kVectors, A>; j++) {
      const To rounded = convert(plain(sum[j]), To());
      if (step<false>(j) < left) store_single(mine + step<false>(j), rounded);
      if (launch.norm) deposit[step<false>(j)] = widen<A>(rounded);
    }
  }
}

// Reduces as many elements as the workers hold, from element `first` of the piece on, or `count`
// elements if that is less.
template <bool kVectors, class A>
__device__ __forceinline__ void reduce_held(const ReduceLaunch& launch, const Range& piece,
                                            uint64_t first, unsigned count, A* stored) {
  const unsigned thread = thread_anew(), left = count > thread ? count - thread : 0;
  first += place<kVectors>(thread);
  const uint64_t source = piece.source + first * element_bytes(piece.from);
  const uint64_t destination = piece.destination + first * element_bytes(piece.to);
  A* const deposit = stored + place<kVectors>(thread);
  A sum[kHeld<kVectors, A>];
  switch (piece.from) {
    case kFp16:
      add_sources<kVectors, Fp16>(launch, source, left, sum);
      break;
    case kBf16:
      add_sources<kVectors, Bf16>(launch, source, left, sum);
      break;
    case kFp32:
      add_sources<kVectors, float>(launch, source, left, sum);
      break;
    default:
      if constexpr (sizeof(A) == 8) add_sources<kVectors, double>(launch, source, left, sum);
  }
  if (launch.divisor != 1) {
    FSCCL_UNROLL
    for (unsigned j = 0; j < kHeld<kVectors, A>; j++) sum[j] = divided(sum[j], launch.divisor);
  } else {
    const A scale = static_cast<A>(launch.scale);
    FSCCL_UNROLL
    for (unsigned j = 0; j < kHeld<kVectors, A>; j++) sum[j] *= scale;
  }
  switch (piece.to) {
    case kFp16:
      return finish<kVectors>(launch, at<Fp16>(destination), left, sum, deposit);
    case kBf16:
      return finish<kVectors>(launch, at<Bf16>(destination), left, sum, deposit);
    case kFp32:
      return finish<kVectors>(launch, at<float>(destination), left, sum, deposit);
    default:
      if constexpr (sizeof(A) == 8)
        finish<kVectors>(launch, at<double>(destination), left, sum, deposit);
  }
}

// Reduces the elements [first, first + count) of a piece, which are a stage at most. A stage begins
// at a multiple of 1024 elements of its piece, so it has the alignment of the piece.
template <class A>
__device__ __forceinline__ void reduce_stage(const ReduceLaunch& launch, const Range& piece,
                                             uint64_t first, unsigned count, void* shared) {
  A* const stored = static_cast<A*>(shared);
  const bool aligned = (piece.source | launch.misalignment) % quad_bytes(piece.from) == 0 &&
                       piece.destination % quad_bytes(piece.to) == 0;
  if (aligned && count == kStage<A>) {
    reduce_held<true>(launch, piece, first, count, stored);
    return;
  }
  constexpr unsigned kAtOnce = kHeld<false, A> * kWorkers;
  FSCCL_ROLLED
  for (unsigned done = 0; done < count; done += kAtOnce)
    reduce_held<false>(launch, piece, first + done, count - done, stored + done);
}

// Reduces every `step`-th tile from `first` on.
__device__ __forceinline__ void reduce_tiles(const ReduceLaunch& launch, ReduceShared& shared,
                                             unsigned first, unsigned step) {
  const bool worker = threadIdx.x < kWorkers, chain = !worker && threadIdx.x < kWorkers + kChains;
  unsigned turn = 0;
  bool before = false;  // the other deposit holds a stage to be added
  Tile next = {};
  if (first < launch.tile_count) next = launch.tiles[first];
  FSCCL_ROLLED
  for (unsigned i = first; i < launch.tile_count; i += step) {
    const Tile tile = next;
    if (i + step < launch.tile_count) next = launch.tiles[i + step];
    const Range piece = launch.pieces[tile.piece];  // read whole, before the elements
    const bool wide = piece.from == kFp64 || piece.to == kFp64;
    const uint64_t begin = static_cast<uint64_t>(tile.index) * kReduceTile,
                   left = piece.count - begin;
    const auto length = static_cast<unsigned>(left < kReduceTile ? left : kReduceTile);
    const unsigned most = wide ? kStage<double> : kStage<float>;
    FSCCL_ROLLED
    for (unsigned done = 0; done < length; done += most, turn ^= 1) {
      const unsigned count = length - done < most ? length - done : most;
      Deposit& deposit = shared.deposits[turn];
      if (worker && wide) reduce_stage<double>(launch, piece, begin + done, count, deposit.stored);
      if (worker && !wide) reduce_stage<float>(launch, piece, begin + done, count, deposit.stored);
      if (!launch.norm) continue;
      if (threadIdx.x == 0) {
        deposit.tile = i, deposit.count = count;
        deposit.wide = wide, deposit.opens = done == 0, deposit.closes = done + count == length;
      }
      if (chain && before) take_deposit(launch, shared, shared.deposits[turn ^ 1]);
      before = true;
      __syncthreads();
    }
  }
  if (chain && before) take_deposit(launch, shared, shared.deposits[turn ^ 1]);
}

}  // namespace fsccl::cuda

// With a norm, the first block adds the sums of the tiles that the other blocks leave.
extern "C" __global__ void __launch_bounds__(fsccl::cuda::kReduceThreads,
                                             fsccl::cuda::kBlocksPerMultiprocessor)
    fsccl_reduce(const __grid_constant__ fsccl::cuda::ReduceLaunch launch) {
  __shared__ fsccl::cuda::ReduceShared shared;
  const unsigned adding = launch.norm ? 1 : 0;
  if (blockIdx.x < adding) {
    fsccl::cuda::add_tiles(launch, shared);
  } else {
    fsccl::cuda::reduce_tiles(launch, shared, blockIdx.x - adding, gridDim.x - adding);
  }
}

// Puts bases that do not fit the launch of a reduce into device memory, in the order of the stream.
// The bases are arguments of this launch, so no memory of the host is read later.
extern "C" __global__ void __launch_bounds__(fsccl::cuda::kBasesPut)
    fsccl_put_bases(const __grid_constant__ fsccl::cuda::PutLaunch launch) {
  if (threadIdx.x < launch.count) launch.to[threadIdx.x] = launch.bases[threadIdx.x];
}
