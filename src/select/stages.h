// Going by hosts (hierarchy.h) as far as its price: the stages of an operation, each one of the
// ranks of a host or of a lane between hosts, and whether they take less time than the whole
// communicator's own plan. Nothing here communicates: the same on all ranks.
#pragma once
#include <string>
#include <vector>

#include "select/select.h"

namespace fsccl {

// A communicator, as far as its choices depend on it.
struct GroupShape {
  int ranks = 1;
  uint64_t slot_bytes = 0;
  bool mirrored = false;
  SelectOptions select;

  Shape shape(uint64_t count, fsccl_dtype_t dtype) const;
  // ranks, as if hosts were even
  int per_host() const { return (ranks + select.host_shape.hosts - 1) / select.host_shape.hosts; }
};

struct Stage {
  bool between_hosts = false;
  OpCode op{};
  uint64_t count = 0;    // elements, as the operation has it
  bool widened = false;  // they are fp32, whatever the operation's are
  std::string plan;
  double ns = 0;  // predicted
};

struct HostsChoice {
  bool by_hosts = false;
  std::vector<Stage> stages;  // none: the operation has no such form
  double ns = 0;              // predicted, of the stages together
  bool asked = false;         // by a rule or a setting; else the predictions decided
  std::string why;
};
// As it costs several ranks of each host, who share its network: bytes take as many times longer;
// latencies do not.
SelectOptions sharing_link(SelectOptions options, int ranks);

// Decides whether an operation on hosts with several ranks goes by stages or by the plan of the
// whole communicator, `whole`. The decision uses only what all ranks know alike: hosts that differ
// count as even ones, uneven parts too, and what a host measured for itself is left aside.
//
// Prices are of links as they typically are, or as a tuning file has them, not as this start found
// them: whether a sum goes by hosts decides in which order it is taken, and so its bits; and how
// many bytes an operation sends between hosts is the same in every run.
//
// `widens`: sums of a host cross to others in fp32, and the elements have 16 bits (hierarchy.h).
HostsChoice choose_by_hosts(OpCode op, const Shape& shape, GroupShape whole, HierarchyMode mode,
                            bool widens = false);

}  // namespace fsccl
