// The norm of a reduce, with the host's bits, beside the reduce itself.
//
// A tile is a block of the norm. Its squares must be added in a fixed order, 16 chains side by
// side, which takes longer than loading it: so a warp of the block does nothing else, one stage
// (what the other threads hold at once) behind them. And tiles' sums must be added in the order of
// the tiles, one chain more: the first block of the grid does only that, while the others work. The
// first, since blocks start in their order: the last would start when the others are nearly done,
// and its chain be behind their work. It waits for blocks that wait for nobody.
#pragma once
#include "kernels/cuda/elements.cuh"

namespace fsccl::cuda {

constexpr unsigned kStageBytes = 64 * kWorkers, kChains = 16;
static_assert(kStageBytes >= 8 * kWorkers);  // a row of tiles' sums

// What workers stored, and where in its tile it is.
struct Deposit {
  alignas(16) unsigned char stored[kStageBytes];
  unsigned tile, count;
  bool wide, opens, closes;  // of fp64; the first, the last of its tile
};

// What is between workers and the adding warp is here, not in registers that both would have to
// keep.
struct ReduceShared {
  Deposit deposits[2];
  double chains[kChains];
  int finite[kChains];
};

// add(x) for `count` elements, every kStep-th, in their order. Eight are read ahead, so that who
// adds waits for the sum before, and not for memory. Volatile, or the compiler reads them where
// they are added.
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
      // the last ones once more, for nobody
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

// The square of a float is exact in double, so that fusing it with the sum changes no bit; and sums
// of such squares are finite exactly where all elements are, so that nobody need look at them one
// by one.
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

// By the first 16 lanes of the last warp.
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
  __syncwarp(0xffff);  // until then the chains are not written again
}

// When it is there. The place is made ready for the next launch.
__device__ __forceinline__ double take_sum(uint64_t* place) {
  volatile uint64_t* const shown = place;
  uint64_t bits;
  do bits = *shown;
  while (bits == kNoSum);
  *shown = kNoSum;
  return __longlong_as_double(static_cast<long long>(bits));
}

// Workers gather the sums of a row of tiles, and one thread adds those of the row before.
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
