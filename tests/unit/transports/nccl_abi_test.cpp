// Compares transports/nccl/nccl_api.h with NCCL's nccl.h. nccl.h defines some of the functions'
// names as macros, so the header of the library comes first.
#include "transports/nccl/nccl_library.h"

#include <nccl.h>

namespace ours = fsccl::nccl;

static_assert(sizeof(ours::ncclUniqueId) == sizeof(ncclUniqueId));
static_assert(sizeof(ours::ncclConfig_t) == sizeof(ncclConfig_t));
#define SAME_MEMBER(name) \
  static_assert(offsetof(ours::ncclConfig_t, name) == offsetof(ncclConfig_t, name), #name)
SAME_MEMBER(size);
SAME_MEMBER(magic);
SAME_MEMBER(version);
SAME_MEMBER(blocking);
SAME_MEMBER(cgaClusterSize);
SAME_MEMBER(minCTAs);
SAME_MEMBER(maxCTAs);
SAME_MEMBER(netName);
SAME_MEMBER(splitShare);
SAME_MEMBER(trafficClass);
SAME_MEMBER(commName);
SAME_MEMBER(collnetEnable);
SAME_MEMBER(CTAPolicy);
SAME_MEMBER(shrinkShare);
SAME_MEMBER(nvlsCTAs);
SAME_MEMBER(nChannelsPerNetPeer);
SAME_MEMBER(nvlinkCentricSched);
#define SAME_NUMBER(name) \
  static_assert(static_cast<int>(ours::name) == static_cast<int>(::name), #name)
SAME_NUMBER(ncclSuccess);
SAME_NUMBER(ncclUnhandledCudaError);
SAME_NUMBER(ncclSystemError);
SAME_NUMBER(ncclInternalError);
SAME_NUMBER(ncclInvalidArgument);
SAME_NUMBER(ncclInvalidUsage);
SAME_NUMBER(ncclRemoteError);
SAME_NUMBER(ncclInProgress);
SAME_NUMBER(ncclSum);
SAME_NUMBER(ncclProd);
SAME_NUMBER(ncclMax);
SAME_NUMBER(ncclMin);
SAME_NUMBER(ncclAvg);
SAME_NUMBER(ncclScalarHostImmediate);
SAME_NUMBER(ncclInt8);
SAME_NUMBER(ncclUint8);
SAME_NUMBER(ncclInt32);
SAME_NUMBER(ncclUint32);
SAME_NUMBER(ncclInt64);
SAME_NUMBER(ncclUint64);
SAME_NUMBER(ncclFloat16);
SAME_NUMBER(ncclFloat32);
SAME_NUMBER(ncclFloat64);
SAME_NUMBER(ncclBfloat16);
static_assert(ours::kConfigUndefined == NCCL_CONFIG_UNDEF_INT &&
              ours::kWindowSymmetric == NCCL_WIN_COLL_SYMMETRIC &&
              ours::kCtaPolicyZero == NCCL_CTA_POLICY_ZERO);

// The functions have as many arguments as NCCL's, each of the same size.
template <class... Ours, class... Theirs, class A, class B>
constexpr bool same(A (*)(Ours...), B (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs))
    return false;
  else
    return sizeof(A) == sizeof(B) && ((sizeof(Ours) == sizeof(Theirs)) && ...);
}
#define FSCCL_NCCL_REQUIRED(name)                                      \
  static_assert(same(static_cast<decltype(&ours::api::name)>(nullptr), \
                     static_cast<decltype(&::name)>(nullptr)),         \
                #name);
#define FSCCL_NCCL_OPTIONAL(name)
#include "transports/nccl/nccl_functions.def"

int main() {
  constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
  const ours::ncclConfig_t config;
  return config.magic == kTheirs.magic && config.version == kTheirs.version ? 0 : 1;
}
