#include "bootstrap/tree_steps.h"

#include <algorithm>

namespace fsccl {

int32_t mended_parent(int32_t order, const std::vector<bool>& lost) {
  for (int32_t above = order; above > 0;) {
    above = parent_order(above);
    if (!lost[static_cast<size_t>(above)]) return above;
  }
  const auto first =
      static_cast<int32_t>(std::find(lost.begin(), lost.end(), false) - lost.begin());
  return first < order ? first : -1;
}

Result<int32_t> Roll::enter(const MemberRecord& member, int32_t ranks) {
  const int32_t rank = member.rank;
  if (ranks < 1 || ranks > kMaxRanks)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "rank {} says that the job has {} ranks", rank, ranks)
        .with_peer(-1, rank);
  if (members_.empty()) {
    ranks_ = ranks;
    order_of_rank_.assign(static_cast<size_t>(ranks), -1);
  }
  if (ranks != ranks_)
    return fail(FSCCL_ERR_MISMATCH,
                "rank {} says that the job has {} ranks, rank {} says {}: give all the same number "
                "of them (WORLD_SIZE)",
                rank, ranks, members_.front().rank, ranks_)
        .with_peer(-1, rank);
  if (rank < 0 || rank >= ranks)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "rank {} is outside 0 .. {}", rank, ranks - 1)
        .with_peer(-1, rank);
  int32_t& order = order_of_rank_[static_cast<size_t>(rank)];
  if (order < 0) {
    order = static_cast<int32_t>(members_.size());
    members_.push_back(member);
  }
  const MemberRecord& first = members_[static_cast<size_t>(order)];
  if (first.listener == member.listener) return int32_t{order};
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "rank {} joined twice: from process {} and from process {}; give each process a rank "
              "of its own (RANK), and each job "
              "on this "
              "host a MASTER_PORT of its own",
              rank, first.pid, member.pid)
      .with_peer(-1, rank);
}

std::vector<int32_t> Roll::missing() const {
  std::vector<int32_t> missing;
  for (int32_t rank = 0; rank < ranks_; ++rank)
    if (order_of_rank_[static_cast<size_t>(rank)] < 0) missing.push_back(rank);
  return missing;
}

TreeSteps::Sends TreeSteps::child_linked(int32_t rank) {
  linked_.push_back({rank, false});
  Sends sends{{FrameType::kLinked, To::kChild, rank}};
  if (has_members_) sends.push_back({FrameType::kMembers, To::kChild, rank, true});
  return sends;
}

void TreeSteps::child_dropped(int32_t rank) {
  std::erase_if(linked_, [&](const Child& child) { return child.rank == rank; });
}

TreeSteps::Sends TreeSteps::members_came(const std::vector<int32_t>& ranks_by_order) {
  has_members_ = true;
  const int64_t first = int64_t{order_} * kFanOut + 1;
  for (int64_t order = first; order < first + kFanOut && order < ranks_; ++order)
    expected_.push_back(ranks_by_order[static_cast<size_t>(order)]);
  Sends sends = to_children(FrameType::kMembers, true);
  const Sends further = advance();
  sends.insert(sends.end(), further.begin(), further.end());
  return sends;
}

TreeSteps::Sends TreeSteps::child_ready(int32_t rank) {
  for (Child& child : linked_) child.ready |= child.rank == rank;
  return advance();
}

TreeSteps::Sends TreeSteps::may_go() {
  if (joined_) return {};
  joined_ = true;
  return to_children(FrameType::kGo, false);
}

std::vector<int32_t> TreeSteps::missing() const {
  std::vector<int32_t> missing;
  for (const int32_t rank : expected_)
    if (std::none_of(linked_.begin(), linked_.end(),
                     [&](const Child& child) { return child.rank == rank && child.ready; }))
      missing.push_back(rank);
  return missing;
}

// Reports to the parent once the subtree is whole. The root has no parent, and lets all ranks go.
TreeSteps::Sends TreeSteps::advance() {
  if (!has_members_ || subtree_joined_ || !missing().empty()) return {};
  subtree_joined_ = true;
  if (order_ > 0) return {{FrameType::kReady, To::kParent}};
  Sends sends = may_go();
  sends.push_back({FrameType::kDone, To::kRendezvous});
  return sends;
}

TreeSteps::Sends TreeSteps::gave(size_t children) const {
  if (children < linked_.size()) return {};
  if (order_ > 0) return {{FrameType::kGather, To::kParent, -1, true}};
  return gathered();
}

TreeSteps::Sends TreeSteps::to_children(FrameType type, bool carries) const {
  Sends sends;
  for (const Child& child : linked_) sends.push_back({type, To::kChild, child.rank, carries});
  return sends;
}

}  // namespace fsccl
