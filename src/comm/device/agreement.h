// Before the first collective on device memory of a communicator, its ranks tell each other what
// they can use. All of them then come to the same decision: what moves the bytes, what of NCCL may
// be used, and why. UCX is asked only if NCCL does not move the bytes, because a process that has
// NCCL need not start UCX.
#pragma once
#include <string>
#include <vector>

#include "base/config.h"
#include "cuda/device.h"
#include "transports/exchange.h"
#include "transports/nccl/nccl_features.h"
#include "transports/nccl/nccl_library.h"

namespace fsccl {

// The terms that a rank tells the others. They are plain bytes.
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
  nccl::ncclUniqueId id{};        // the id of rank 0
  char why[160] = "";
  char host[64] = "";  // the name of the host
};

// Returns the terms of this process and GPU. Rank 0 makes NCCL's id.
DeviceTerms device_terms(const cuda::Device& device, int rank);

// Returns true if this process can use NCCL, or sets *why.
bool nccl_usable(std::string* why);

struct DeviceDecision {
  bool nccl = false;
  std::string why;  // the reason, if NCCL is not used
  DeviceTransport asked = DeviceTransport::kAuto;
  nccl::Facts facts;          // the arguments of features_of(), without peer_access
  bool kernels = false;       // all ranks can sum in fp32 by this library's kernels
  bool by_placement = false;  // FSCCL_REPRODUCIBLE=placement
  int ranks_on_gpu = 1;       // the number of ranks on the GPU that most ranks share
};

// Decides from the terms and the hosts of the ranks (numbers of the machines), by rank. A pure
// function. Returns FSCCL_ERR_MISMATCH if settings differ, and FSCCL_ERR_NOT_AVAILABLE if NCCL is
// asked for and cannot be used.
Result<DeviceDecision> decide(const std::vector<DeviceTerms>& terms,
                              const std::vector<uint64_t>& hosts);

// Returns true if ranks whose `decision` is not NCCL try an exchange by UCX, or sets *why.
bool tries_exchange(const DeviceDecision& decision, std::string* why);
// Returns the reason why UCX does not exchange parts, or an empty text if it does. A pure function.
std::string obstacle_to_exchange(const std::vector<ExchangeTerms>& terms,
                                 const std::vector<uint64_t>& hosts, DeviceTransport asked);

}  // namespace fsccl
