// Which plans carry out which calls, as FSCCL_PLAN and tuning files (tuning_file.h) say it: rules
// in order, of which the first that fits a call counts.
//
//   all_gather@2x4:64K-1M=slots/32K, all_reduce=by_hosts
//
//   all_gather   the operation, with its uneven form
//   @2x4         on communicators of 2 hosts with 4 ranks each; * stands for any number
//   :64K-1M      of so many bytes of the larger buffer, both included; 64K- and -1M are open
//   =slots       one of the candidates that fsccl_explain names; `all_gather_slots` is the same
//   /32K         what goes through slots does so in pieces of 32 KiB
//
// `by_hosts` and `flat` say how a communicator of several hosts with several ranks each goes about
// it, and nothing elsewhere: the next rule that fits says by which plan then. Any other plan
// implies `flat` there. `nccl`, `ucx`, `summed` and `staged` are ways of memory of GPUs (native.h),
// and go in no pieces. `unit_unshard=p2p` and `unit_unshard=collectives` say how units on GPUs move
// their bytes (unit_algorithm.h). Other rules are for plain collectives, not for units and lists.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "plan/fingerprint.h"

namespace fsccl {

enum class Algorithm : uint8_t {
  slots,        // at once, wherever the buffers lie
  small_slots,  // slots at once, where every rank reduces everything
  steps_2,      // between hosts, to few at a time who pass it on (in_steps.cpp)
  steps_3,
  steps_4,
  direct,  // between the buffers where all can touch them, else through slots or as `read`
  read,    // the same, and private memory is read by the system
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

// The shape of a communicator, as far as rules ask for it.
struct HostShape {
  int hosts = 1, per_host = 1;  // per_host 0: not the same on all
};

struct Rule {
  OpCode op{};
  Algorithm algorithm{};
  uint64_t from = 0, to = UINT64_MAX;  // bytes
  int hosts = 0, per_host = 0;         // 0: any
  uint64_t chunk = 0;                  // 0: as the cost model finds
  std::string origin;                  // "FSCCL_PLAN", "rule 2 of FSCCL_TUNING_FILE"

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

OpCode even_form(OpCode op);

// A call, as rules see it.
struct RuledCall {
  OpCode op{};
  uint64_t bytes = 0;
  HostShape host_shape;
};
// Null: none. The first rule that says whether a call goes by hosts, the first that says by which
// plan, and for memory of GPUs the first that says which way. Rules for memory of GPUs say nothing
// of host memory, and the other way round.
const Rule* rule_of_hosts(const std::vector<Rule>& rules, const RuledCall& call);
const Rule* rule_of_plan(const std::vector<Rule>& rules, const RuledCall& call);
const Rule* rule_of_device(const std::vector<Rule>& rules, const RuledCall& call);

// Once for each rule and reason.
void announce_ignored(const Rule& rule, OpCode op, std::string_view reason);

}  // namespace fsccl
