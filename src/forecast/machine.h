// The machine or cluster that a forecast is for: hosts that are alike, the ranks on each, what a
// rank computes with, and the links.
//
//   {"name": "dgx-h100", "source": "https://..", "device": "gpu", "ranks_per_host": 8,
//    "memory_bytes": 85899345920, "memory_gb_per_s": 3350, "tflops": {"bf16": 989},
//    "efficiency": 0.45, "context_bytes": 1073741824, "carrier": "plans",
//    "within": {"link": "nvlink", "gb_per_s": 450, "ns": 2000},
//    "between": {"gb_per_s": 400, "ns": 5000}}
//
// "cores_per_host", where ranks share cores: more ranks than cores take turns, and "tflops" is of a
// rank that has a core of its own. "memory_bytes", "tflops" and "context_bytes" are of a rank.
// "within" is one way of a rank, "between" one way of a whole host. Where a topology file is given
// ("topology"), "ranks_per_host" and both links come from it, and what the JSON says beside it
// wins. "measured" (what fsccl_explain calls so, of ranks within a host) takes the place of what is
// typical of the link.
#pragma once
#include <string>

#include "base/json_value.h"
#include "base/status.h"
#include "plan/cost.h"
#include "topo/connection.h"

namespace fsccl::forecast {

// The costs of a unit's passes over memory. A pass that reads and writes `streaming_bytes` or more
// stores past the caches (comm/collective.h), and a byte of it then costs something else.
struct PassCosts {
  Costs costs;  // the costs of signals, and of bytes where these were not measured
  // Measured time of a byte that is read or written; 0: not measured.
  double cached_per_byte = 0, streaming_per_byte = 0;
  uint64_t streaming_bytes = 0;

  // The cost model prices the bytes that a pass reads.
  Costs of(uint64_t read, uint64_t written) const;
};

// The carrier of the bytes: the library's own plans, or NCCL for everything.
enum class Carrier : uint8_t { plans, nccl };

struct Machine {
  std::string name, source;
  bool gpu = false;
  int ranks_per_host = 1;
  uint64_t memory_bytes = 0;  // memory of a rank; 0: no limit is known
  uint64_t context_bytes =
      0;  // bytes of a rank that the driver and the framework take before the first tensor
  double memory_gb_per_s = 0;  // bandwidth of a rank's memory
  double flops = 0;            // a second, of a rank, in the type of the computation; 0: unknown
  double efficiency = 0.45;    // share of the flops that a pass reaches
  Carrier carrier = Carrier::plans;
  topo::Connection within, between;
  Costs within_costs;        // costs of the plans
  PassCosts gather, reduce;  // the costs of a unit's gathers and reductions within a host
  // Measured processor time of a byte that one rank sends to another host and one receives there,
  // both together; 0: not known.
  double network_per_byte = 0;
  std::string network;  // "tcp" or "ucx": whose slots the plans between hosts use
  double ranks_per_core = 1;
};

// `type`: of the computation, "bf16" and its like.
Result<Machine> read_machine(const JsonValue& json, const std::string& type);

}  // namespace fsccl::forecast
