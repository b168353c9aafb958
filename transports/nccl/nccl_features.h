// Decides which features of NCCL may be used, and says why others may not, as a pure function of
// the version of NCCL, its functions, and where the ranks are. NCCL itself reports little of this
// before it fails, hangs, or silently takes a slower way. All ranks have the same facts and so
// decide alike, and `explain` reports the decision.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"

namespace fsccl::nccl {

// The oldest version that is used: it makes and finalises communicators without blocking, as
// nccl_comm.h needs it.
inline constexpr int kOldest = 21900;

struct Facts {
  int version = 0;  // the same on all ranks
  // True if the functions were found on all ranks.
  bool has_windows = false, has_all_to_all = false, has_revoke = false;
  int ranks = 1, hosts = 1;   // `hosts` as NCCL tells them apart (NCCL_HOSTID)
  bool peer_access = false;   // every two GPUs of a host can map each other's memory
  std::string windows_off;    // the setting, and its rank, that forbids them; or empty
  bool copy_engines = false;  // all ranks want them (NCCL_CTA_POLICY)
  int driver = 0;             // CUDA version, 1000 * major + 10 * minor; the oldest of all ranks
};

struct Feature {
  bool usable = false;
  std::string why;  // why it is not usable; empty if it is
};

struct Features {
  Feature base;  // communicators and plain collectives
  // Windows in symmetric memory: kernels read the memory of peers, and add 16-bit floats in fp32.
  // Before 2.29 nothing ends such a kernel if it waits for a dead rank.
  Feature windows;
  // All-gathers by copy engines, which take no multiprocessor from the computation. In no version
  // of NCCL does anything end one that waits for a dead rank.
  Feature copy_gather;
  Feature all_to_all;  // in one call; otherwise by sends and receives
  // Ending operations in flight without freeing the communicator while others use it.
  Feature revoke;
  bool send_needs_window = true;  // copy_gather needs the source in a window, too
};

Features features_of(const Facts& facts);

// Returns FSCCL_ERR_MISMATCH if the versions of the ranks differ. The error names the ranks and
// hosts of each version. `hosts` has the names of the hosts, by rank.
Status compare_versions(const std::vector<int>& versions, const std::vector<std::string>& hosts);

}  // namespace fsccl::nccl
