// NCCL's numbers and types as the stand-in needs them, after nccl.h and without it. Declared apart
// from transports/nccl on purpose: what stands in for NCCL must not take over a mistake of its
// user.
#pragma once
#include <cstddef>

namespace fsccl::stand_in_nccl {

enum Code : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum Type : int {
  kInt8,
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16,
  kTypes
};
// kMade: from here on, ncclRedOpCreatePreMulSum's
enum Operator : int { kSum, kProduct, kMaximum, kMinimum, kAverage, kMade };

struct UniqueId {
  char bytes[128];
};

struct Config {  // the fields of 2.28 that are looked at
  size_t size;
  unsigned magic, version;
  int blocking, cluster, least_ctas, most_ctas;
  const char* network;
  int share_split, traffic_class;
  const char* name;
  int collnet, cta_policy;
};
inline constexpr unsigned kMagic = 0xcafebeef;
inline constexpr int kZeroCtas = 2, kSymmetric = 1;
inline constexpr size_t kWindowAlignment = 4096;

}  // namespace fsccl::stand_in_nccl
