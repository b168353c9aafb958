// The functions of NCCL that are used, from libnccl.so.2 when there is one: the one that the
// process has already (a framework brings its own, and two in a process would not know of each
// other), else the system's.
//
// Types and numbers are declared here as in nccl.h, whose soname keeps them;
// tests/unit/transports/nccl_abi_test.cpp compares them with the header where there is one. A
// function is null when the library is too old to have it; nccl_features.h says what follows.
#pragma once
#include <climits>
#include <cstddef>
#include <string>

#include "cuda/driver.h"

namespace fsccl::nccl {

struct CommHandle;
struct WindowHandle;
using Comm = CommHandle*;
using Window = WindowHandle*;

struct UniqueId {
  char bytes[128];
};

using Code = int;  // ncclResult_t
inline constexpr Code kSuccess = 0, kUnhandledCudaError = 1, kSystemError = 2, kInternalError = 3,
                      kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7,
                      kTimeout = 8;

enum class Type : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
};

using Operator = int;  // ncclRedOp_t: one of these, or made by make_scaled_sum
inline constexpr Operator kSum = 0, kProduct = 1, kMaximum = 2, kMinimum = 3, kAverage = 4;
inline constexpr int kScalarOnHost = 1;  // ncclScalarResidence_t

inline constexpr int kUndefined = INT_MIN;  // of a field of Settings: NCCL decides
inline constexpr int kSymmetricWindow = 1;  // all ranks' windows have the same offsets
inline constexpr int kZeroCtas = 2;         // copy engines where NCCL can

// ncclConfig_t of 2.28. Older libraries read the first fields, newer ones take the rest as
// undefined.
struct Settings {
  size_t size = sizeof(Settings);
  unsigned magic = 0xcafebeef;
  unsigned version = 22809;
  int blocking = kUndefined;
  int cluster = kUndefined, least_ctas = kUndefined, most_ctas = kUndefined;
  const char* network = nullptr;
  int share_split = kUndefined, traffic_class = kUndefined;
  const char* name = nullptr;
  int collnet = kUndefined, cta_policy = kUndefined, share_shrink = kUndefined,
      nvls_ctas = kUndefined;
  int channels_per_peer = kUndefined, nvlink_centric = kUndefined;
};

struct Library {
  Code (*get_version)(int* version);
  Code (*get_unique_id)(UniqueId* id);
  Code (*init_rank)(Comm* comm, int ranks, UniqueId id, int rank, Settings* settings);
  Code (*finalize)(Comm comm);
  Code (*destroy)(Comm comm);
  Code (*abort)(Comm comm);
  Code (*revoke)(Comm comm, int flags);  // or null
  const char* (*error_string)(Code code);
  const char* (*last_error)(Comm comm);
  Code (*async_error)(Comm comm, Code* code);
  // or null
  Code (*count)(Comm comm, int* ranks);
  // or null
  Code (*window_register)(Comm comm, void* memory, size_t bytes, Window* window, int flags);
  // or null
  Code (*window_deregister)(Comm comm, Window window);
  Code (*make_scaled_sum)(Operator* made, void* scale, Type type, int residence, Comm comm);
  Code (*destroy_operator)(Operator made, Comm comm);

  Code (*reduce)(const void* send, void* recv, size_t count, Type type, Operator how, int root,
                 Comm comm, cuda::Stream stream);
  Code (*broadcast)(const void* send, void* recv, size_t count, Type type, int root, Comm comm,
                    cuda::Stream stream);
  Code (*all_reduce)(const void* send, void* recv, size_t count, Type type, Operator how, Comm comm,
                     cuda::Stream stream);
  Code (*reduce_scatter)(const void* send, void* recv, size_t count, Type type, Operator how,
                         Comm comm, cuda::Stream stream);
  Code (*all_gather)(const void* send, void* recv, size_t count, Type type, Comm comm,
                     cuda::Stream stream);
  // or null
  Code (*all_to_all)(const void* send, void* recv, size_t count, Type type, Comm comm,
                     cuda::Stream stream);
  Code (*send)(const void* buffer, size_t count, Type type, int peer, Comm comm,
               cuda::Stream stream);
  Code (*recv)(void* buffer, size_t count, Type type, int peer, Comm comm, cuda::Stream stream);
  Code (*group_start)();
  Code (*group_end)();

  int version;  // 10000 * major + 100 * minor + patch
};

// Of this file; null, and *why there is none. Stays loaded.
Result<Library> load(const char* file);
// libnccl.so.2, once; null, and *why.
const Library* library(std::string* why);

// "operation: text of the code (NCCL's own words)" and what to do, as FSCCL_ERR_...; `comm` may be
// null.
[[gnu::cold]] Status failed(const Library& library, const char* operation, Code code, Comm comm);

// Which setting switches windows off in this process, "NCCL_WIN_ENABLE is 0"; empty: none. NCCL
// then takes a window for memory of the rank alone and says nothing. What its own files set it puts
// into the environment when it begins: asked before, they are missing here.
std::string windows_off();

// Whether NCCL_CTA_POLICY asks for them in this process, as this version reads it; NCCL takes it
// before what a communicator says.
bool wants_copy_engines(int version);

// Whether NCCL_COMM_BLOCKING does, in this process: NCCL takes it before what a communicator says.
bool made_to_block();

// "2.28.9"
std::string version_text(int version);

}  // namespace fsccl::nccl
