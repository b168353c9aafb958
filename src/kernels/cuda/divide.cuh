// Divides floats in place, in their own type. This makes averages of the sums that NCCL has taken,
// with the bits of a reduce, which divides by a number that is no power of two in fp64 and rounds
// the quotient to the accumulator's type.
#pragma once
#include "kernels/cuda/elements.cuh"

namespace fsccl::cuda {

template <class T>
__device__ __forceinline__ void divide_all(const DivideLaunch& launch) {
  T* const values = static_cast<T*>(launch.values);
  const T divisor = static_cast<T>(launch.divisor);
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * kDivideThreads;
  FSCCL_ROLLED
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * kDivideThreads + threadIdx.x;
       i < launch.count; i += step)
    values[i] /= divisor;
}

}  // namespace fsccl::cuda

extern "C" __global__ void __launch_bounds__(fsccl::cuda::kDivideThreads)
    fsccl_divide(const __grid_constant__ fsccl::cuda::DivideLaunch launch) {
  if (launch.wide)
    fsccl::cuda::divide_all<double>(launch);
  else
    fsccl::cuda::divide_all<float>(launch);
}
