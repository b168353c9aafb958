#include "bootstrap/membership.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "wire/told.h"

namespace fsccl {
namespace {

constexpr size_t kMostText = 1000;  // characters of an error that a vote carries

// Returns true if `a` holds against `b`. With the same code that of the lower rank holds, so that
// all ranks decide the same.
bool worse(const Vote::Refusal& a, const Vote::Refusal& b) {
  return std::tie(a.code, a.rank) < std::tie(b.code, b.rank);
}

}  // namespace

void Membership::begin(std::vector<int32_t> members, int32_t self,
                       const std::vector<int32_t>& failed, const Vote::Refusal& refusal) {
  if (begun()) return;
  Vote mine = mine_;  // nothing is changed if there is no memory
  mine.refusal = refusal;
  mine.refusal.text = told_text(std::string_view(refusal.text).substr(0, kMostText));
  mine.rank = self;
  mine.failed = failed;
  std::sort(mine.failed.begin(), mine.failed.end());
  std::sort(members.begin(), members.end());
  mine_ = std::move(mine);
  members_ = std::move(members);
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
    mine_.refusal = other->second.refusal;
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

void Membership::decide(const std::map<int32_t, bool>& lost) {
  // A decision is taken over before losses are added to the vote: a loss may be that of the rank
  // that decided, which this rank has not held for lost so far.
  if (take_over()) {
    expelled_ = holds_lost(mine_.rank);
    mine_.decided = !expelled_;
    return;
  }
  while (grow(lost)) {
  }
  expelled_ = holds_lost(mine_.rank);
  if (expelled_ || !unanimous()) return;
  Vote::Refusal worst = mine_.refusal;
  for (const int32_t rank : members_)
    if (rank != mine_.rank && !holds_lost(rank) && worse(others_.at(rank).refusal, worst))
      worst = others_.at(rank).refusal;
  mine_.refusal = std::move(worst);
  mine_.decided = true;
}

std::optional<Vote> Membership::advance(const std::map<int32_t, bool>& lost) {
  if (begun() && !decided() && !expelled_) decide(lost);
  const bool speaks = declined_ ? !others_.empty() : begun() && !expelled_;
  if (!speaks || mine_ == said_) return std::nullopt;
  std::optional<Vote> vote(mine_);
  said_ = mine_;
  return vote;
}

std::vector<Vote> Membership::all() const {
  std::vector<Vote> all;
  for (const auto& [rank, vote] : others_) all.push_back(vote);
  if (said_.rank >= 0) all.push_back(said_);
  return all;
}

Vote::Refusal Membership::refusal() const {
  for (const auto& [rank, vote] : others_) {
    if (vote.refusal.code) return vote.refusal;
    if (std::binary_search(vote.failed.begin(), vote.failed.end(), rank))
      return {FSCCL_ERR_PEER_DEAD, rank, "it does not go on"};
  }
  return {};
}

std::vector<int32_t> Membership::missing() const {
  std::vector<int32_t> missing;
  std::copy_if(members_.begin(), members_.end(), std::back_inserter(missing), [&](int32_t rank) {
    return rank != mine_.rank && !holds_lost(rank) && !others_.contains(rank);
  });
  return missing;
}

}  // namespace fsccl
