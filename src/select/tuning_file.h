// Findings about a machine that hold for every start, in a file. FSCCL_TUNING_FILE names it, and
// `fsccl-perf tune` writes it:
//   {"fsccl_tuning": 1,
//    "costs": [{"machine": "..", "transport": "shm", "link": "cache",
//               "measured": {"exchange_ns": 110, "sizes": [256, 2048, 131072],
//                            "slots_ns": [..], "slots_past_caches_ns": [..],
//                            "side_by_side": "none", "read_ns": [..] or null,
//                            "read_to_slots": 0.7, "read_written": 1,
//                            "copy_ns_per_kib": 40}}],
//    "rules": ["all_gather@1x2:64K-1M=slots/32K"],
//    "native": [{"operation": "all_gather", "hosts": 1, "ranks_per_host": 2, "algorithm": "nccl",
//                "sizes": [4096, 1048576], "ns": [14000, 61000]}]}
// An entry of `costs` is for communicators on machines of that name (machine_name()), over that
// transport, whose farthest ranks are connected by that class of link (topo/connection.h). Such a
// communicator measures nothing when it starts. "measured" holds the values that fsccl_explain
// shows. `rules` are those of rules.h. `native` has the times of algorithms on memory of GPUs
// (native_price.h). A tuning file is not trusted: errors name the file, the place in it and what
// was expected.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/json_writer.h"
#include "plan/cost.h"
#include "select/native_price.h"
#include "select/rules.h"
#include "topo/connection.h"

namespace fsccl {

struct Tuning {
  struct Measured {
    std::string machine, transport;
    topo::LinkClass link{};
    Costs costs;
  };
  std::vector<Measured> costs;
  std::vector<Rule> rules;
  std::vector<NativePrice> native;
  uint64_t hash = 0;  // hash of the text

  // An empty `machine` stands for any machine.
  const Costs* find(const std::string& machine, std::string_view transport,
                    topo::LinkClass link) const;
};

Result<Tuning> load_tuning(const std::string& path);  // an empty path gives an empty Tuning
Result<Tuning> parse_tuning(const std::string& text, const std::string& source);
// Writes costs as a tuning file has them in "measured" and fsccl_explain() shows them.
void write_costs(JsonWriter& out, const Costs& costs);
std::string costs_json(const Costs& costs);

// Returns the rules of FSCCL_PLAN, then those of the file that no setting contradicts.
Result<std::shared_ptr<const std::vector<Rule>>> rules_in_force(const Config& settings,
                                                                const Tuning& tuning);

// Returns the name of this machine: the names of its processors, and their number.
std::string machine_name();

}  // namespace fsccl
