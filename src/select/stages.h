// Decides whether an operation runs in two levels, inside each host and between hosts
// (comm/hierarchy.h). Such an operation has stages; each is an operation of the ranks of a host, or
// of a lane between hosts. This file prices the stages, and compares them with one plan of the
// whole communicator. Nothing here communicates, and all ranks decide the same.
#pragma once
#include <string>
#include <vector>

#include "select/select.h"

namespace fsccl {

// The properties of a communicator on which the choice of its plans depends.
struct GroupShape {
  int ranks = 1;
  uint64_t slot_bytes = 0;
  bool mirrored = false;
  SelectOptions select;

  Shape shape(uint64_t count, fsccl_dtype_t dtype) const;
  // Returns the ranks of a host, as if all hosts had the same number.
  int per_host() const { return (ranks + select.host_shape.hosts - 1) / select.host_shape.hosts; }
};

// A lane carries at least so many bytes of an array that is cut into parts for the lanes, if there
// are so many. Smaller parts would take messages of more lanes, for no fewer bytes.
inline constexpr uint64_t kLeastLaneBytes = 16u << 10;

struct Stage {
  bool between_hosts = false;
  OpCode op{};
  uint64_t count = 0;    // elements, as the operation `op` counts them
  bool widened = false;  // the elements are fp32, whatever the dtype of the call is
  std::string plan;
  double ns = 0;  // predicted
};

struct HostsChoice {
  bool by_hosts = false;      // the operation runs in two levels
  std::vector<Stage> stages;  // empty if the operation cannot do so
  double ns = 0;              // the predicted time of all stages
  bool asked = false;         // a rule or a setting decided, and not the predictions
  std::string why;
};
// Returns the costs if `ranks` ranks of each host share its network at once: bytes take `ranks`
// times as long, latencies do not.
SelectOptions sharing_link(SelectOptions options, int ranks);

// Decides whether an operation on hosts with several ranks runs in stages or by a plan of the whole
// communicator, `whole`. The decision uses only facts that all ranks know: it treats hosts and
// parts as if they were even, and does not use the measurements of a single host.
//
// Prices come from typical links, or from a tuning file, not from the measurements of this start.
// The decision must be the same in every run, because it determines the order of a sum, and so its
// bits, and the number of bytes that cross between hosts.
//
// `widens` says that the elements have 16 bits and the sums of a host are sent to other hosts in
// fp32 (comm/hierarchy.h).
HostsChoice choose_by_hosts(OpCode op, const Shape& shape, GroupShape whole, HierarchyMode mode,
                            bool widens = false);

}  // namespace fsccl
