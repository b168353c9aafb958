// The rules of FSCCL_PLAN and of tuning files (tuning_file.h). A rule names the plan that carries
// out certain calls. Rules are in order, and the first that fits a call counts.
//
//   all_gather@2x4:64K-1M=slots/32K, all_reduce=by_hosts
//
//   all_gather   the operation, with its uneven form
//   @2x4         on communicators of 2 hosts with 4 ranks each; * stands for any number
//   :64K-1M      if the larger buffer has 64 KiB to 1 MiB, both included; 64K- and -1M are open
//   =slots       a candidate that fsccl_explain names; `all_gather_slots` is the same
//   /32K         a plan through slots uses pieces of 32 KiB
//
// `by_hosts` and `flat` say whether a call runs in two levels (stages.h), on a communicator of
// several hosts with several ranks each. They have no effect on other communicators: there the next
// rule that fits names the plan. Any other plan implies `flat`. `nccl`, `ucx`, `summed` and
// `staged` are algorithms for memory of GPUs (native.h), which use no pieces. `unit_unshard=p2p`
// and `unit_unshard=collectives` say how units on GPUs move their bytes (unit_algorithm.h). All
// other rules are for plain collectives, not for units and lists.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "plan/fingerprint.h"

namespace fsccl {

enum class Algorithm : uint8_t {
  slots,        // eager: through slots without asking where peers' buffers lie
  small_slots,  // eager as well, and every rank that reduces, reduces everything
  steps_2,      // between hosts: in steps, to a few ranks that forward the data (in_steps.cpp)
  steps_3,
  steps_4,
  direct,  // between the buffers if all ranks can touch them, else through slots or as `read`
  read,    // like `direct`, and the system reads private memory
  by_hosts,
  flat,
  // These are for memory of GPUs (native.h).
  nccl,
  ucx,
  summed,
  staged,
  // These are for units on GPUs (unit_algorithm.h).
  p2p,
  collectives,
};

// The hosts of a communicator, and the ranks of each host.
struct HostShape {
  int hosts = 1, per_host = 1;  // per_host 0: hosts have different numbers of ranks
};

struct Rule {
  OpCode op{};
  Algorithm algorithm{};
  uint64_t from = 0, to = UINT64_MAX;  // bytes
  int hosts = 0, per_host = 0;         // 0: any
  uint64_t chunk = 0;                  // bytes of a piece; 0: the cost model chooses
  std::string origin;                  // "FSCCL_PLAN", "rule 2 of FSCCL_TUNING_FILE"
  bool flat = true;  // a named plan also says that the call does not run in two levels

  bool in_steps() const {
    return algorithm == Algorithm::steps_2 || algorithm == Algorithm::steps_3 ||
           algorithm == Algorithm::steps_4;
  }
  bool of_hosts() const { return algorithm == Algorithm::by_hosts || algorithm == Algorithm::flat; }
  bool of_device() const { return algorithm >= Algorithm::nccl; }
};

// Errors name the rule and what is accepted. Empty text: no rules.
Result<Rule> parse_rule(std::string_view text);
Result<std::vector<Rule>> parse_rules(std::string_view text, const std::string& origin);

// Returns the operation of which `op` is the v form, or `op` itself.
OpCode even_form(OpCode op);

// A call, as rules see it.
struct RuledCall {
  OpCode op{};
  uint64_t bytes = 0;
  HostShape host_shape;
};
// These return the first rule that fits a call, or null: the rule that says whether a call runs in
// two levels, the rule that names a plan for host memory, and the rule that names an algorithm for
// memory of GPUs. Rules for memory of GPUs do not apply to host memory, and vice versa.
const Rule* rule_of_hosts(const std::vector<Rule>& rules, const RuledCall& call);
const Rule* rule_of_plan(const std::vector<Rule>& rules, const RuledCall& call);
const Rule* rule_of_device(const std::vector<Rule>& rules, const RuledCall& call);

// Logs that the rule is not followed, once for each rule and reason.
void announce_ignored(const Rule& rule, OpCode op, std::string_view reason);

}  // namespace fsccl
