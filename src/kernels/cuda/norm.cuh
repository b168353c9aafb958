// The norm of a reduce, with the host's bits, computed beside the reduce itself.
//
// A tile is a block of the norm. Its squares must be added in a fixed order, as 16 chains side by
// side, which takes longer than loading the tile. Therefore one warp of the thread block, the
// *adding warp*, does nothing else, while the other threads, the *workers*, reduce. It is one stage
// behind the workers; a stage is 64 bytes of each worker, in the accumulator's type.
//
// The sums of the tiles must be added in the order of the tiles, which is one more chain. The first
// block of the grid does only that, while the others work. It is the first one because blocks start
// in their order: the last one would start when the others are nearly done, and would add its whole
// chain after their work. The first block waits for the others, but none of these waits for another
// block, so all of them end.
#pragma once
#include "kernels/cuda/elements.cuh"

namespace fsccl::cuda {

constexpr unsigned kStageBytes = 64 * kWorkers, kChains = 16;
static_assert(kStageBytes >= 8 * kWorkers);  // room for a row of tiles' sums, too

// One stage that the workers have stored, and its place in its tile.
struct Deposit {
  alignas(16) unsigned char stored[kStageBytes];
  unsigned tile, count;
  // wide: its elements are fp64; opens, closes: it is the first, the last stage of its tile
  bool wide, opens, closes;
};

// The workers and the adding warp exchange everything through this shared memory, so that neither
// has to keep it in registers.
struct ReduceShared {
  Deposit deposits[2];
  double chains[kChains];
  int finite[kChains];
};

// Calls add(x) for `count` elements, every kStep-th from `from` on, in their order. Eight elements
// are read ahead, so that each addition waits only for the one before, and not for memory. The
// pointer is volatile because otherwise the compiler would move the reads to the additions.
template <unsigned kStep, class T, class Add>
__device__ __forceinline__ void add_in_order(const volatile T* from, unsigned count, Add&& add) {
  constexpr unsigned kAhead = 8;
  if (count >= kAhead) {
    T next[kAhead];
    FSCCL_UNROLL
    for (unsigned k = 0; k < kAhead; k++) next[k] = from[k * kStep];
    FSCCL_ROLLED
    for (; count >= kAhead; count -= kAhead) {
      T now[kAhead];
      FSCCL_UNROLL
      for (unsigned k = 0; k < kAhead; k++) now[k] = next[k];
      // In the last round, these loads read elements again that nobody uses.
      const volatile T* const ahead = count >= 2 * kAhead ? from + kAhead * kStep : from;
      FSCCL_UNROLL
      for (unsigned k = 0; k < kAhead; k++) next[k] = ahead[k * kStep];
      FSCCL_UNROLL
      for (unsigned k = 0; k < kAhead; k++) add(now[k]);
      from += kAhead * kStep;
    }
  }
  FSCCL_ROLLED
  for (; count; count--, from += kStep) add(*from);
}

__device__ __forceinline__ bool is_finite(double x) { return fabs(x) <= 1.7976931348623157e308; }

// The square of a float is exact in double, so fusing the square with the addition changes no bit.
// The sum of such squares is finite exactly if all elements are, so no element has to be checked by
// itself.
__device__ __forceinline__ void add_square(float x, double& sum, bool&) {
  const double exact = x;
  sum = __fma_rn(exact, exact, sum);
}
__device__ __forceinline__ void add_square(double x, double& sum, bool& finite) {
  sum += x * x;
  finite = finite && is_finite(x);
}

template <class A>
__device__ __forceinline__ void add_squares(const A* stored, unsigned count, unsigned chain,
                                            double& sum, bool& finite) {
  const unsigned mine = count > chain ? (count - chain + kChains - 1) / kChains : 0;
  add_in_order<kChains>(stored + chain, mine, [&](A x) { add_square(x, sum, finite); });
}

template <unsigned kHalf>
__device__ __forceinline__ void add_halves(double (&sums)[kChains]) {
  FSCCL_UNROLL
  for (unsigned k = 0; k < kHalf; k++) sums[k] += sums[k + kHalf];
  if constexpr (kHalf > 1) add_halves<kHalf / 2>(sums);
}

// Adds the squares of a deposit to the chains, and after the last deposit of a tile publishes the
// sum of the tile. The first 16 lanes of the adding warp call it.
__device__ __forceinline__ void take_deposit(const ReduceLaunch& launch, ReduceShared& shared,
                                             const Deposit& deposit) {
  const unsigned chain = threadIdx.x - kWorkers;
  double sum = deposit.opens ? 0 : shared.chains[chain];
  bool finite = deposit.opens || shared.finite[chain];
  if (deposit.wide) {
    add_squares(reinterpret_cast<const double*>(deposit.stored), deposit.count, chain, sum, finite);
  } else {
    add_squares(reinterpret_cast<const float*>(deposit.stored), deposit.count, chain, sum, finite);
  }
  shared.chains[chain] = sum;
  shared.finite[chain] = finite;
  if (!deposit.closes) return;
  __syncwarp(0xffff);
  if (chain == 0) {
    double sums[kChains];
    bool all = true;
    FSCCL_UNROLL
    for (unsigned k = 0; k < kChains; k++)
      sums[k] = shared.chains[k], all = all && shared.finite[k];
    add_halves<kChains / 2>(sums);
    if (!deposit.wide) all = is_finite(sums[0]);
    const auto bits = static_cast<uint64_t>(__double_as_longlong(plain(sums[0])));
    *const_cast<volatile uint64_t*>(launch.sums + deposit.tile) = bits | (all ? 0 : 1ull << 63);
  }
  __syncwarp(0xffff);  // lane 0 has read the chains before any is written again
}

// Waits for a tile's sum and returns it. Stores kNoSum in its place, for the next launch.
__device__ __forceinline__ double take_sum(uint64_t* place) {
  volatile uint64_t* const shown = place;
  uint64_t bits;
  do bits = *shown;
  while (bits == kNoSum);
  *shown = kNoSum;
  return __longlong_as_double(static_cast<long long>(bits));
}

// Adds the sums of all tiles. A row is kWorkers tiles: the workers wait for the sums of one row
// while one thread of the adding warp adds those of the row before.
__device__ __forceinline__ void add_tiles(const ReduceLaunch& launch, ReduceShared& shared) {
  double sum = 0;
  bool finite = true;
  unsigned turn = 0;
  for (unsigned first = 0; first < launch.tile_count + kWorkers; first += kWorkers, turn ^= 1) {
    if (threadIdx.x < kWorkers) {
      const unsigned tile = first + threadIdx.x;
      if (tile < launch.tile_count)
        reinterpret_cast<double*>(shared.deposits[turn].stored)[threadIdx.x] =
            take_sum(launch.sums + tile);
    } else if (threadIdx.x == kWorkers && first) {
      const auto* const row = reinterpret_cast<const double*>(shared.deposits[turn ^ 1].stored);
      const unsigned left = launch.tile_count - (first - kWorkers),
                     count = left < kWorkers ? left : kWorkers;
      add_in_order<1>(row, count, [&](double x) {
        sum += fabs(x);
        finite = finite && __double_as_longlong(x) >= 0;
      });
    }
    __syncthreads();
  }
  if (threadIdx.x != kWorkers) return;
  struct Norm {
    double sum;
    int finite, unused;
  };
  *static_cast<Norm*>(launch.norm) = {plain(sum), finite, 0};
}

}  // namespace fsccl::cuda
