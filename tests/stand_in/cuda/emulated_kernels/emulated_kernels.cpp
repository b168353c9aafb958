// The library's kernels, compiled for the CPU, as the stand-in for the driver finds them (kernels.cpp there): what runs the whole
// grid, and the sizes of the arguments.
// clang-format off
#include "cuda_on_host.h"
#include "kernels/cuda/kernels.cu"
// clang-format on

#define FSCCL_EMULATED(name, Launch)                                                                                 \
  __attribute__((visibility("default"))) extern const unsigned fsccl_emulated_sizes_##name[];                        \
  const unsigned fsccl_emulated_sizes_##name[] = {sizeof(fsccl::cuda::Launch), 0};                                   \
  __attribute__((visibility("default"))) void fsccl_emulated_##name(const unsigned grid[3], const unsigned block[3], \
                                                                    void** arguments) {                              \
    run_grid(                                                                                                        \
        grid, block, [](void* launch) { name(*static_cast<const fsccl::cuda::Launch*>(launch)); }, arguments[0]);    \
  }

extern "C" {
FSCCL_EMULATED(fsccl_cast, CastLaunch)
FSCCL_EMULATED(fsccl_reduce, ReduceLaunch)
FSCCL_EMULATED(fsccl_put_bases, PutLaunch)
}
