// Before the first collective on device memory of a communicator its ranks tell each other what
// they have, and each draws the same conclusion: what moves the bytes, what of NCCL may be used,
// and why. UCX, which a process that has NCCL need not start, is asked only where NCCL is not what
// moves them.
#pragma once
#include <string>
#include <vector>

#include "base/config.h"
#include "cuda/device.h"
#include "transports/exchange.h"
#include "transports/nccl/nccl_features.h"
#include "transports/nccl/nccl_library.h"

namespace fsccl {

// The terms that a rank tells the others; plain bytes.
struct DeviceTerms {
  int32_t version = 0;  // version of NCCL; 0: there is none, and `why` says the reason
  int32_t driver = 0;   // version of CUDA
  int32_t choice = 0;   // FSCCL_DEVICE_TRANSPORT
  uint8_t reproducible = 0, has_windows = 0, has_all_to_all = 0, has_revoke = 0;
  uint8_t shares_gpus = 0;        // NCCL_MULTI_RANK_GPU_ENABLE
  uint8_t copy_engines = 0;       // NCCL_CTA_POLICY
  uint8_t blocks = 0;             // NCCL_COMM_BLOCKING
  uint8_t kernels = 0;            // true if this library has kernels for its GPU
  unsigned char device[16] = {};  // the GPU
  uint64_t nccl_host = 0;         // a hash of NCCL_HOSTID; 0: not set
  nccl::ncclUniqueId id{};        // rank 0's
  char why[160] = "";
  char host[64] = "";  // its name
};

// Returns the terms of this process and GPU. Rank 0 makes NCCL's id.
DeviceTerms device_terms(const cuda::Device& device, int rank);

// Returns true if this process can use NCCL, or sets *why.
bool nccl_usable(std::string* why);

struct DeviceDecision {
  bool nccl = false;
  std::string why;  // not, if so
  DeviceTransport asked = DeviceTransport::kAuto;
  nccl::Facts facts;          // for features_of(), but for peer_access
  bool kernels = false;       // all ranks can sum in fp32 themselves
  bool by_placement = false;  // FSCCL_REPRODUCIBLE=placement
  int ranks_on_gpu = 1;       // on the one that most share
};

// By rank, as are `hosts`, numbers of the machines; a pure function. FSCCL_ERR_MISMATCH where
// settings differ, FSCCL_ERR_NOT_AVAILABLE where NCCL is wanted and cannot be.
Result<DeviceDecision> decide(const std::vector<DeviceTerms>& terms,
                              const std::vector<uint64_t>& hosts);

// Returns true if ranks whose `decision` is not NCCL try an exchange by UCX, or sets *why.
bool tries_exchange(const DeviceDecision& decision, std::string* why);
// Why parts are not exchanged by UCX; empty: they are. A pure function.
std::string obstacle_to_exchange(const std::vector<ExchangeTerms>& terms,
                                 const std::vector<uint64_t>& hosts, DeviceTransport asked);

}  // namespace fsccl
