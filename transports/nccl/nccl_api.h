// The part of nccl.h that the library uses: types, numbers and functions of NCCL under NCCL's
// names, in the namespace fsccl::nccl. The library is built without NCCL, so it cannot include
// nccl.h. tests/unit/transports/nccl_abi_test.cpp compares this header with nccl.h where NCCL is
// installed.
//
// The functions are declared and never defined: nccl_library.h makes a table of pointers of their
// types.
#pragma once
#include <climits>
#include <cstddef>

#include "cuda/cuda_api.h"

namespace fsccl::nccl {

using ncclComm_t = struct ncclComm*;
using ncclWindow_t = struct ncclWindow_vidmem*;

struct ncclUniqueId {
  char internal[128];
};

using ncclResult_t = int;
inline constexpr ncclResult_t ncclSuccess = 0, ncclUnhandledCudaError = 1, ncclSystemError = 2,
                              ncclInternalError = 3, ncclInvalidArgument = 4, ncclInvalidUsage = 5,
                              ncclRemoteError = 6, ncclInProgress = 7;
inline constexpr ncclResult_t ncclTimeout = 8;  // NCCL 2.30

enum ncclDataType_t : int {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};

using ncclRedOp_t = int;  // one of these, or one that ncclRedOpCreatePreMulSum made
inline constexpr ncclRedOp_t ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4;
inline constexpr int ncclScalarHostImmediate = 1;  // ncclScalarResidence_t

inline constexpr int kConfigUndefined = INT_MIN;  // NCCL_CONFIG_UNDEF_INT: NCCL decides
inline constexpr int kWindowSymmetric = 1;        // NCCL_WIN_COLL_SYMMETRIC
inline constexpr int kCtaPolicyZero = 2;          // NCCL_CTA_POLICY_ZERO: copy engines

// ncclConfig_t of NCCL 2.28. Older libraries read the first fields, and newer ones take the fields
// that are missing here as undefined.
struct ncclConfig_t {
  size_t size = sizeof(ncclConfig_t);
  unsigned magic = 0xcafebeef;
  unsigned version = 22809;
  int blocking = kConfigUndefined;
  int cgaClusterSize = kConfigUndefined, minCTAs = kConfigUndefined, maxCTAs = kConfigUndefined;
  const char* netName = nullptr;
  int splitShare = kConfigUndefined, trafficClass = kConfigUndefined;
  const char* commName = nullptr;
  int collnetEnable = kConfigUndefined, CTAPolicy = kConfigUndefined,
      shrinkShare = kConfigUndefined, nvlsCTAs = kConfigUndefined;
  int nChannelsPerNetPeer = kConfigUndefined, nvlinkCentricSched = kConfigUndefined;
};

namespace api {

ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
const char* ncclGetErrorString(ncclResult_t code);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* code);
ncclResult_t ncclCommCount(ncclComm_t comm, int* ranks);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t bytes,
                                    ncclWindow_t* window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* made, void* scale, ncclDataType_t type,
                                      int residence, ncclComm_t comm);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t made, ncclComm_t comm);

ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cuda::CUstream stream);
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cuda::CUstream stream);
ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cuda::CUstream stream);
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cuda::CUstream stream);
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cuda::CUstream stream);
ncclResult_t ncclAlltoAll(const void* send, void* recv, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cuda::CUstream stream);
ncclResult_t ncclSend(const void* buffer, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cuda::CUstream stream);
ncclResult_t ncclRecv(void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cuda::CUstream stream);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();

}  // namespace api
}  // namespace fsccl::nccl
