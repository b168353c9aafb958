// NCCL's numbers and types that the stand-in needs, written after nccl.h without including it. They
// are declared apart from transports/nccl on purpose, so that a mistake there does not get into the
// stand-in.
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
// Numbers from kMade on are operators that ncclRedOpCreatePreMulSum() has made.
enum Operator : int { kSum, kProduct, kMaximum, kMinimum, kAverage, kMade };

struct UniqueId {
  char bytes[128];
};

// The fields of ncclConfig_t of NCCL 2.28 that the stand-in reads.
struct Config {
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
