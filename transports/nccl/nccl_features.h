// The features of NCCL that may be used, and why others may not: a pure function of the library's
// version, its functions, and where the ranks are. NCCL reports little of this before it fails,
// hangs, or silently takes a slower way. The decision is therefore made here, the same on all
// ranks, and `explain` reports it.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"

namespace fsccl::nccl {

// one that takes non-blocking settings and finalises in the background as is wanted here
inline constexpr int kOldest = 21900;

struct Facts {
  int version = 0;  // the same on all ranks
  // functions found, on all ranks
  bool has_windows = false, has_all_to_all = false, has_revoke = false;
  int ranks = 1, hosts = 1;   // hosts as NCCL tells them apart: by NCCL_HOSTID where that is set
  bool peer_access = false;   // every two GPUs of a host can map each other's memory
  std::string windows_off;    // which setting of which rank switches them off; empty: none
  bool copy_engines = false;  // all ranks want them (NCCL_CTA_POLICY)
  int driver = 0;             // CUDA's, the oldest of any rank: 1000 * major + 10 * minor
};

struct Feature {
  bool usable = false;
  std::string why;  // not; empty when usable
};

struct Features {
  Feature base;  // communicators and plain collectives
  // Symmetric memory: kernels that read peers' memory and accumulate 16-bit floats in fp32. Before
  // 2.29 nothing ends one that waits for a rank that has died.
  Feature windows;
  // All-gather by copy engines: no multiprocessor is taken from the computation. Nothing ends one,
  // in any version.
  Feature copy_gather;
  Feature all_to_all;  // in one call; else as sends and receives
  // operations in flight are ended without freeing the communicator under who uses it
  Feature revoke;
  bool send_needs_window = true;  // copy_gather: the source, too, or the result alone
};

Features features_of(const Facts& facts);

// FSCCL_ERR_MISMATCH when versions (by rank) are not all alike; it names who has which, and where.
// `hosts`: their names, by rank.
Status compare_versions(const std::vector<int>& versions, const std::vector<std::string>& hosts);

}  // namespace fsccl::nccl
