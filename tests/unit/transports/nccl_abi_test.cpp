// Our declarations of NCCL against its header.
#include <nccl.h>

#include "transports/nccl/nccl_library.h"

using namespace fsccl::nccl;

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(sizeof(Settings) == sizeof(ncclConfig_t));
#define SAME_PLACE(ours, theirs) \
  static_assert(offsetof(Settings, ours) == offsetof(ncclConfig_t, theirs))
SAME_PLACE(size, size);
SAME_PLACE(magic, magic);
SAME_PLACE(version, version);
SAME_PLACE(blocking, blocking);
SAME_PLACE(most_ctas, maxCTAs);
SAME_PLACE(network, netName);
SAME_PLACE(name, commName);
SAME_PLACE(cta_policy, CTAPolicy);
SAME_PLACE(nvlink_centric, nvlinkCentricSched);
static_assert(kUndefined == NCCL_CONFIG_UNDEF_INT && kSymmetricWindow == NCCL_WIN_COLL_SYMMETRIC &&
              kZeroCtas == NCCL_CTA_POLICY_ZERO);
static_assert(kSuccess == ncclSuccess && kUnhandledCudaError == ncclUnhandledCudaError &&
              kSystemError == ncclSystemError && kInternalError == ncclInternalError &&
              kInvalidArgument == ncclInvalidArgument && kInvalidUsage == ncclInvalidUsage &&
              kRemoteError == ncclRemoteError && kInProgress == ncclInProgress);
static_assert(kSum == ncclSum && kProduct == ncclProd && kMaximum == ncclMax &&
              kMinimum == ncclMin && kAverage == ncclAvg);
static_assert(kScalarOnHost == ncclScalarHostImmediate);
static_assert(int(Type::int8) == ncclInt8 && int(Type::uint8) == ncclUint8 &&
              int(Type::int32) == ncclInt32 && int(Type::uint32) == ncclUint32 &&
              int(Type::int64) == ncclInt64 && int(Type::uint64) == ncclUint64 &&
              int(Type::float16) == ncclFloat16 && int(Type::float32) == ncclFloat32 &&
              int(Type::float64) == ncclFloat64 && int(Type::bfloat16) == ncclBfloat16);

int main() {
  constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
  const Settings ours;
  return ours.magic == kTheirs.magic && ours.version == kTheirs.version ? 0 : 1;
}
