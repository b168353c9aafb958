// The lists that Slurm writes into variables: hosts, "rack[0-1]n[08-11,3],login", and counts for
// each node, "4(x2),1".
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace fsccl {

inline constexpr size_t kMaxHosts = 65536;

// Expands a list in Slurm's order: the leftmost bracket changes slowest, and numbers keep their
// leading zeros. Returns FSCCL_ERR_CONFIG, with the place, if the text is not such a list or names
// more than kMaxHosts hosts.
Result<std::vector<std::string>> expand_hosts(const std::string& list);

// Returns the count of node `node`; nodes are numbered from 0.
Result<int32_t> count_of_node(const std::string& counts, int32_t node);

}  // namespace fsccl
