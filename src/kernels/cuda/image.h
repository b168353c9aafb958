// The compiled kernels for all GPUs: a fat binary, embedded in the library as bytes. embed.py
// writes the source.
#pragma once
#include <cstddef>

namespace fsccl::cuda {

struct KernelImage {
  const void* bytes;          // null: the library was built without nvcc
  size_t size;                // bytes
  const char* architectures;  // "sm_80 sm_90 sm_100 compute_80 compute_100", the last two as PTX
};
extern const KernelImage kKernelImage;

}  // namespace fsccl::cuda
