// The CUDA driver of this process. libcuda.so.1 is loaded at run time if it is installed, so one
// build of the library serves machines with and without GPUs. The library links and loads no other
// part of CUDA. The CUDA runtime is built on the functions of the driver, and a cudaStream_t is a
// CUstream.
#pragma once
#include <cstdint>
#include <string>

#include "base/status.h"
#include "cuda/cuda_api.h"

namespace fsccl::cuda {

inline constexpr unsigned kMaxBatchMemOps = 255;  // operations of one cuStreamBatchMemOp
inline bool is_legacy(CUstream stream) { return reinterpret_cast<uintptr_t>(stream) <= 1; }

// The functions of the driver under NVIDIA's names, without the suffix _v2 that cuda.h hides too.
struct Driver {
#define FSCCL_CUDA_REQUIRED(name, symbol) decltype(&api::symbol) name;
#define FSCCL_CUDA_OPTIONAL(name, symbol) decltype(&api::symbol) name;  // may be null
#include "cuda/driver_functions.def"

  int version;  // 1000 * major + 10 * minor
};

// Returns the initialised driver, which stays loaded. Returns null if there is no driver or if it
// is older than 12.0; *why then holds the reason.
const Driver* driver(std::string* why);

// Returns "operation: CUDA_ERROR_X (its text)" as FSCCL_ERR_OUT_OF_MEMORY, FSCCL_ERR_NOT_AVAILABLE
// or FSCCL_ERR_SYSTEM.
[[gnu::cold]] Status failed(const Driver& driver, const char* operation, CUresult code);
inline Status check(const Driver& driver, const char* operation, CUresult code) {
  return code == CUDA_SUCCESS ? success() : failed(driver, operation, code);
}

}  // namespace fsccl::cuda
