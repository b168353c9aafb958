#include "bootstrap/membership.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace fsccl {

void Membership::begin(std::vector<int32_t> members, int32_t self,
                       const std::vector<int32_t>& failed, int32_t code) {
  if (begun()) return;
  std::sort(members.begin(), members.end());
  members_ = std::move(members);
  mine_.rank = self;
  mine_.code = code;
  mine_.failed = failed;
  std::sort(mine_.failed.begin(), mine_.failed.end());
}

void Membership::decline(int32_t self) {
  if (decided() || declined_) return;
  declined_ = expelled_ = true;
  mine_.rank = self;
  mine_.failed.insert(std::lower_bound(mine_.failed.begin(), mine_.failed.end(), self), self);
}

bool Membership::hear(const Vote& vote) {
  if (vote.rank == mine_.rank) return false;
  const auto [entry, added] = others_.try_emplace(vote.rank, vote);
  if (added) return true;
  Vote& known = entry->second;
  if (known.decided || (!vote.decided && vote.failed.size() <= known.failed.size())) return false;
  known = vote;
  return true;
}

bool Membership::holds_lost(int32_t rank) const {
  return std::binary_search(mine_.failed.begin(), mine_.failed.end(), rank);
}

// Adds lost members and members that another voter holds for lost, if that voter is not lost
// itself. Returns true if there are more of them now.
bool Membership::grow(const std::map<int32_t, bool>& lost) {
  std::vector<int32_t> more;
  const auto add = [&](int32_t rank) {
    if (std::binary_search(members_.begin(), members_.end(), rank) && !holds_lost(rank))
      more.push_back(rank);
  };
  for (const auto& [rank, left] : lost) add(rank);
  for (const auto& [rank, vote] : others_)
    if (!holds_lost(rank)) std::for_each(vote.failed.begin(), vote.failed.end(), add);
  if (more.empty()) return false;
  mine_.failed.insert(mine_.failed.end(), more.begin(), more.end());
  std::sort(mine_.failed.begin(), mine_.failed.end());
  mine_.failed.erase(std::unique(mine_.failed.begin(), mine_.failed.end()), mine_.failed.end());
  return true;
}

bool Membership::take_over() {
  for (const int32_t rank : members_) {
    const auto other = others_.find(rank);
    if (other == others_.end() || !other->second.decided || holds_lost(rank)) continue;
    mine_.failed = other->second.failed;
    mine_.code = other->second.code;
    return true;
  }
  return false;
}

bool Membership::unanimous() const {
  return std::all_of(members_.begin(), members_.end(), [&](int32_t rank) {
    if (rank == mine_.rank || holds_lost(rank)) return true;
    const auto other = others_.find(rank);
    return other != others_.end() && other->second.failed == mine_.failed;
  });
}

std::optional<Vote> Membership::advance(const std::map<int32_t, bool>& lost) {
  if (declined_ && said_ != mine_ && !others_.empty()) {
    said_ = mine_;
    return mine_;
  }
  if (!begun() || decided() || expelled_) return std::nullopt;
  // A decision is taken over before losses are added to the vote: a loss may be that of the rank
  // that decided, which this rank has not held for lost so far.
  if (take_over()) {
    expelled_ = holds_lost(mine_.rank);
    mine_.decided = !expelled_;
  } else {
    while (grow(lost)) {
    }
    expelled_ = holds_lost(mine_.rank);
    mine_.decided = !expelled_ && unanimous();
    for (const int32_t rank : members_)  // the worst code holds
      if (mine_.decided && rank != mine_.rank && !holds_lost(rank))
        mine_.code = std::min(mine_.code, others_.at(rank).code);
  }
  if (expelled_ || mine_ == said_) return std::nullopt;
  said_ = mine_;
  return mine_;
}

std::vector<Vote> Membership::all() const {
  std::vector<Vote> all;
  for (const auto& [rank, vote] : others_) all.push_back(vote);
  if (said_.rank >= 0) all.push_back(said_);
  return all;
}

std::vector<int32_t> Membership::missing() const {
  std::vector<int32_t> missing;
  std::copy_if(members_.begin(), members_.end(), std::back_inserter(missing), [&](int32_t rank) {
    return rank != mine_.rank && !holds_lost(rank) && !others_.contains(rank);
  });
  return missing;
}

}  // namespace fsccl
