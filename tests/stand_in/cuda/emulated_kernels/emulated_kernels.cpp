// The library's kernels, compiled for the CPU, under the names by which the stand-in for the driver
// finds them (kernels.cpp): a function that runs the whole grid, and the sizes of the arguments.
// clang-format off
#include "cuda_on_host.h"
#include "kernels/cuda/kernels.cu"
// clang-format on

namespace {
using namespace fsccl::cuda;

bool has_barriers(const CastLaunch&) { return false; }
bool has_barriers(const ReduceLaunch& launch) { return launch.norm; }
bool has_barriers(const PutLaunch&) { return false; }
bool has_barriers(const DivideLaunch&) { return false; }
bool has_barriers(const EncodeLaunch&) { return true; }
bool has_barriers(const DecodeLaunch&) { return true; }
bool has_barriers(const SumsLaunch&) { return true; }

template <class Launch, void (*kernel)(Launch)>
void run(const unsigned grid[3], const unsigned block[3], void** arguments) {
  const auto thread = [](void* launch) { kernel(*static_cast<const Launch*>(launch)); };
  run_grid(grid, block, has_barriers(*static_cast<const Launch*>(arguments[0])), thread,
           arguments[0]);
}
}  // namespace

#define FSCCL_EMULATED(name, Launch)                                                          \
  __attribute__((visibility("default"))) extern const unsigned fsccl_emulated_sizes_##name[]; \
  const unsigned fsccl_emulated_sizes_##name[] = {sizeof(Launch), 0};                         \
  __attribute__((visibility("default"))) void fsccl_emulated_##name(                          \
      const unsigned grid[3], const unsigned block[3], void** arguments) {                    \
    run<Launch, name>(grid, block, arguments);                                                \
  }

extern "C" {
FSCCL_EMULATED(fsccl_cast, CastLaunch)
FSCCL_EMULATED(fsccl_reduce, ReduceLaunch)
FSCCL_EMULATED(fsccl_put_bases, PutLaunch)
FSCCL_EMULATED(fsccl_divide, DivideLaunch)
FSCCL_EMULATED(fsccl_encode, EncodeLaunch)
FSCCL_EMULATED(fsccl_decode, DecodeLaunch)
FSCCL_EMULATED(fsccl_encode_sums, SumsLaunch)
FSCCL_EMULATED(fsccl_decode_sums, SumsLaunch)
}
