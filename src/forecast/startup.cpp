#include "forecast/startup.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "bootstrap/join.h"
#include "bootstrap/tree_steps.h"

namespace fsccl::forecast {
namespace {

// Messages of a connection to the registrar: Hello, Challenge, Proof, Register, Assign; and of a
// link of the tree before TreeSteps takes over: Hello, Challenge, Proof (wire/handshake.h).
constexpr int kRegistrationMessages = 5, kLinkMessages = 3;

struct Sent {
  int messages = 0, children = 0;
};

// Returns the messages that the rank of this place in the tree sends until the job stands, if all
// its children come in time.
Sent sent_by(int order, int ranks) {
  TreeSteps steps(order, ranks);
  const int first = order * kFanOut + 1, last = std::min(ranks, first + kFanOut);
  std::vector<int32_t> rank_of(static_cast<size_t>(std::max(last, 1)));
  std::iota(rank_of.begin(), rank_of.end(), 0);
  Sent sent;
  const auto add = [&](const TreeSteps::Sends& sends) {
    sent.messages += static_cast<int>(sends.size());
  };
  for (int child = first; child < last; child++, sent.children++) add(steps.child_linked(child));
  add(steps.members_came(rank_of));
  for (int child = first; child < last; child++) add(steps.child_ready(child));
  if (order > 0) add(steps.may_go());
  return sent;
}

}  // namespace

Startup startup_of(int ranks, const Machine& machine, double handshake_ns) {
  Startup made;
  for (int order = ranks - 1; order > 0; order = parent_order(order)) made.depth++;
  const Sent root = sent_by(0, ranks), inner = sent_by(ranks > 1 ? 1 : 0, ranks),
             leaf = sent_by(ranks - 1, ranks);
  made.root_sockets = descriptors_to_join(ranks, true);
  // Descriptors that a rank has beside its links are in descriptors_to_join(), for a rank without
  // children.
  const int alone = descriptors_to_join(1, false);
  made.inner_sockets = alone + inner.children + (ranks > 1 ? 1 : 0);
  made.leaf_sockets = alone + leaf.children + (ranks > 1 ? 1 : 0);
  made.registrar_connections = ranks;
  made.inner_messages =
      inner.messages +
      (ranks > 1 ? 2 + 3 : 0);  // and two proofs of its own on the way to the parent
  // Each link but the root's carries Linked, Members, Ready and Go once; the root has Members from
  // the registrar and sends Done.
  const int64_t links = ranks - 1;
  made.messages = int64_t{ranks} * kRegistrationMessages + links * (kLinkMessages + 4) + 2;
  made.list_bytes = static_cast<double>(kMemberRecordBytes) * ranks;
  made.registrar_ns = handshake_ns * ranks;
  const double level =
      std::min(kFanOut, std::max(root.children, 1)) * made.list_bytes / machine.between.gb_per_s;
  made.list_ns = made.depth * (level + machine.between.ns);
  made.tree_ns = made.depth * (2 * machine.between.ns + handshake_ns);
  return made;
}

}  // namespace fsccl::forecast
