// The machine or cluster that a forecast is for: hosts that are alike, the ranks on each, the speed
// at which a rank computes, and the links.
//
//   {"name": "dgx-h100", "source": "https://..", "device": "gpu", "ranks_per_host": 8,
//    "memory_bytes": 85899345920, "memory_gb_per_s": 3350, "tflops": {"bf16": 989},
//    "efficiency": 0.45, "context_bytes": 1073741824, "carrier": "plans",
//    "within": {"link": "nvlink", "gb_per_s": 450, "ns": 2000},
//    "between": {"gb_per_s": 400, "ns": 5000}}
//
// "cores_per_host" is given if ranks may share cores: if a host has more ranks than cores, they
// take turns, and "tflops" is the speed of a rank that has a core of its own. "memory_bytes",
// "tflops" and "context_bytes" are those of one rank; without "memory_bytes", the ranks of a host
// share "host_memory_bytes". "within" is the speed of one rank in one
// direction, "between" that of a whole host in one direction. A topology file ("topology") gives
// "ranks_per_host" and both links, unless the JSON gives them, too. "measured" is what
// fsccl_explain reports under this name for ranks of one host; it replaces the typical costs of the
// link.
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
  Costs costs;  // the costs of signals, and of bytes whose costs were not measured
  // measured time of a byte that is read or written; 0: not measured
  double cached_per_byte = 0, streaming_per_byte = 0;
  uint64_t streaming_bytes = 0;

  // Returns the costs for a pass that reads and writes so many bytes. The time of a byte is set for
  // each byte read, because the cost model prices only these.
  Costs of(uint64_t read, uint64_t written) const;
};

// The carrier of the bytes: the library's own plans, or NCCL for every collective.
enum class Carrier : uint8_t { plans, nccl };

// The source of the rate between hosts. With `cards` it is the rate of the cards of the topology's
// one host, with `typical` that of a typical network. `nothing` means that the topology has one
// host and says nothing of a network.
enum class NetworkFrom : uint8_t { given, cards, typical, nothing };

// The least share of the flops that a machine may have.
inline constexpr double kLeastEfficiency = 1e-3;

struct Machine {
  std::string name, source;
  std::string topology;  // the file that gave ranks and links, "here", or empty
  bool gpu = false;
  int ranks_per_host = 1;
  double cores_per_host = 0;       // 0: each rank has a core or a GPU of its own
  uint64_t host_memory_bytes = 0;  // memory that the ranks of a host share; 0: not given
  double tflops = 0;               // the rate of a rank that has a core of its own
  Costs link_costs;                // costs of the plans where each rank has a core of its own

  // The following ones depend on how many ranks share a host; with_ranks() sets them.
  uint64_t memory_bytes = 0;  // memory of a rank; 0: no limit is known
  // operations a second of a rank, in the type of the computation
  double flops = 0;
  double ranks_per_core = 1;
  Costs within_costs;        // costs of the plans
  PassCosts gather, reduce;  // the costs of a unit's gathers and reductions within a host

  uint64_t context_bytes =
      0;  // bytes of a rank that the driver and the framework take before the first tensor
  double memory_gb_per_s = 0;  // bandwidth of a rank's memory
  double efficiency = 0.45;    // share of the flops that a pass reaches
  Carrier carrier = Carrier::plans;
  topo::Connection within, between;
  NetworkFrom network_from = NetworkFrom::given;
  bool within_given = false;   // false: the link within a host is a typical one of its class
  bool latency_given = false;  // false: the network has the latency of a typical one
  // Measured processor time of a byte between hosts, for sending and receiving it together; 0: not
  // known.
  double network_per_byte = 0;
  std::string network;  // "tcp" or "ucx", whose size of slots the plans between hosts use

  // Returns the machine as a job of so many ranks sees it: they fill its hosts, and a host that has
  // more of them than cores makes them take turns.
  Machine with_ranks(int ranks) const;
  // The costs of communication within a host were measured on the machine.
  bool measured() const { return link_costs.origin == CostsOrigin::calibration; }
};

// `type` is the type of the computation, such as "bf16". `ranks` is the number of all ranks of the
// job that is forecast: see with_ranks().
Result<Machine> read_machine(const JsonValue& json, const std::string& type, int ranks);

}  // namespace fsccl::forecast
