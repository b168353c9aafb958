// All kernels of the library for GPUs, compiled into one image. The build allows neither
// contraction nor flushing to zero, so that results have the host's bits (device_kernels.h).
#include "kernels/cuda/cast.cuh"
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/divide.cuh"
#include "kernels/cuda/encode.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sums.cuh"
