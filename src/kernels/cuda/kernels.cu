// The kernels of the library for GPUs, in one image. Built without contraction and without flushing
// to zero: see device_kernels.h.
#include "kernels/cuda/cast.cuh"
#include "kernels/cuda/divide.cuh"
#include "kernels/cuda/reduce.cuh"
