#include "forecast/startup.h"

#include <algorithm>

#include "bootstrap/reception.h"
#include "bootstrap/tree_steps.h"
#include "forecast/start/simulated_start.h"

namespace fsccl::forecast {
namespace {

using fsccl_simulated::SimulatedStart;
using fsccl_simulated::StartedRank;
using fsccl_simulated::StartSetting;

// In trees of these sizes every rank has 8 children or none.
constexpr int kOneLevel = 1 + kFanOut, kHalf = 1 + kFanOut + kFanOut * kFanOut / 2;
static_assert(kSimulatedRanks == 1 + kFanOut + kFanOut * kFanOut);
constexpr int kPerHost = 8;  // ranks of a simulated host, if there are several hosts

int depth_of(int ranks) {
  int depth = 0;
  for (int order = ranks - 1; order > 0; order = parent_order(order)) depth++;
  return depth;
}

int children_of(int order, int ranks) {
  return std::clamp(ranks - 1 - order * kFanOut, 0, kFanOut);
}

// Simulates starts of one machine with different numbers of ranks.
class Starts {
 public:
  Starts(int ranks, const Machine& machine, double call_ns) {
    setting_.per_host = ranks <= machine.ranks_per_host
                            ? kSimulatedRanks
                            : std::min(machine.ranks_per_host, kPerHost);
    setting_.way_ns = static_cast<int64_t>(machine.between.ns);
    setting_.wake_ns = kWakeNs;
    setting_.call_ns = static_cast<int64_t>(call_ns);
    setting_.byte_ns = kByteNs;
  }
  Result<SimulatedStart> of(int ranks) {
    setting_.ranks = ranks;
    SimulatedStart start = simulate_start(setting_);
    if (start.problem.empty()) return start;
    return fail(FSCCL_ERR_INTERNAL, "the simulated start of {} ranks failed: {}", ranks,
                start.problem);
  }

 private:
  StartSetting setting_;
};

// Sets the sockets and messages of each kind of rank: the process of the rendezvous, the other
// ranks with the most children, and the ranks without children.
void add_kinds(const SimulatedStart& start, Startup* made) {
  const auto ranks = static_cast<int>(start.ranks.size());
  made->meeting_sockets = static_cast<int>(start.ranks[0].most_sockets);
  int most_children = -1;
  for (size_t rank = ranks > 1 ? 1 : 0; rank < start.ranks.size(); rank++) {
    const StartedRank& one = start.ranks[rank];
    const int children = children_of(one.order, ranks);
    const auto sockets = static_cast<int>(one.most_sockets);
    if (children == 0) made->leaf_sockets = std::max(made->leaf_sockets, sockets);
    // The first rank of the tree keeps the connection to the rendezvous, and has none to a parent.
    if (one.order == 0 && ranks > kOneLevel) continue;
    if (children < most_children) continue;
    const int before = children > most_children ? 0 : made->inner_sockets;
    made->inner_sockets = std::max(before, sockets);
    made->inner_messages = static_cast<int>(one.messages);
    most_children = children;
  }
}

}  // namespace

Result<Startup> startup_of(int ranks, const Machine& machine, double call_ns) {
  if (call_ns <= 0) call_ns = ranks <= machine.ranks_per_host ? kUnixCallNs : kTcpCallNs;
  Starts starts(ranks, machine, call_ns);
  const int simulated = std::min(ranks, kSimulatedRanks);
  FSCCL_ASSIGN(const SimulatedStart start, starts.of(simulated));
  Startup made;
  made.simulated_ranks = simulated;
  made.depth = depth_of(ranks);
  made.list_bytes = static_cast<double>(kMemberRecordBytes) * ranks;
  made.messages = start.messages;
  made.rendezvous_ns = static_cast<double>(start.registered_ns);
  made.tree_ns = static_cast<double>(start.joined_ns - start.registered_ns);
  add_kinds(start, &made);
  double calls = 0;
  for (const StartedRank& rank : start.ranks) calls += static_cast<double>(rank.calls);
  made.processor_ns = kOwnNs + calls / simulated * call_ns;
  if (machine.ranks_per_core > 1) made.shared_ns = machine.ranks_per_core * made.processor_ns;
  if (ranks == simulated) return made;

  FSCCL_ASSIGN(const SimulatedStart half, starts.of(kHalf));
  FSCCL_ASSIGN(const SimulatedStart shallow, starts.of(kOneLevel));
  const double more = ranks - simulated, counted = kSimulatedRanks - kHalf;
  made.messages += (start.messages - half.messages) / (kSimulatedRanks - kHalf) *
                   static_cast<int64_t>(ranks - simulated);
  made.rendezvous_ns += more * call_ns *
                        static_cast<double>(start.rendezvous_calls - half.rendezvous_calls) /
                        counted;
  // The rendezvous lets so many visitors in at once.
  made.meeting_sockets += std::min(ranks, static_cast<int>(kMaxVisitors)) - simulated;
  const auto tail = [](const SimulatedStart& one) {
    return static_cast<double>(one.joined_ns - one.registered_ns);
  };
  made.tree_ns += (made.depth - depth_of(simulated)) * std::max(0.0, tail(start) - tail(shallow));
  const double pass_ns = std::max(kByteNs, 1 / machine.between.gb_per_s);
  made.list_ns = made.depth * made.list_bytes * (kByteNs + kFanOut * pass_ns);
  return made;
}

}  // namespace fsccl::forecast
