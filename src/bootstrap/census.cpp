#include "bootstrap/census.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace fsccl {

void Census::begin(std::vector<int32_t> members, int32_t self, const std::vector<int32_t>& failed,
                   int32_t code) {
  if (begun()) return;
  std::sort(members.begin(), members.end());
  members_ = std::move(members);
  mine_.rank = self;
  mine_.code = code;
  mine_.failed = failed;
  std::sort(mine_.failed.begin(), mine_.failed.end());
}

void Census::decline(int32_t self) {
  if (decided() || declined_) return;
  declined_ = expelled_ = true;
  mine_.rank = self;
  mine_.failed.insert(std::lower_bound(mine_.failed.begin(), mine_.failed.end(), self), self);
}

bool Census::hear(const Stand& stand) {
  if (stand.rank == mine_.rank) return false;
  const auto [entry, added] = others_.try_emplace(stand.rank, stand);
  if (added) return true;
  Stand& known = entry->second;
  if (known.decided || (!stand.decided && stand.failed.size() <= known.failed.size())) return false;
  known = stand;
  return true;
}

bool Census::gone(int32_t rank) const {
  return std::binary_search(mine_.failed.begin(), mine_.failed.end(), rank);
}

// Whether there are more members that are held for gone: lost ones, and whom somebody holds for it
// who is not.
bool Census::grow(const std::map<int32_t, bool>& lost) {
  std::vector<int32_t> more;
  const auto add = [&](int32_t rank) {
    if (std::binary_search(members_.begin(), members_.end(), rank) && !gone(rank))
      more.push_back(rank);
  };
  for (const auto& [rank, left] : lost) add(rank);
  for (const auto& [rank, stand] : others_)
    if (!gone(rank)) std::for_each(stand.failed.begin(), stand.failed.end(), add);
  if (more.empty()) return false;
  mine_.failed.insert(mine_.failed.end(), more.begin(), more.end());
  std::sort(mine_.failed.begin(), mine_.failed.end());
  mine_.failed.erase(std::unique(mine_.failed.begin(), mine_.failed.end()), mine_.failed.end());
  return true;
}

bool Census::take_over() {
  for (const int32_t rank : members_) {
    const auto other = others_.find(rank);
    if (other == others_.end() || !other->second.decided || gone(rank)) continue;
    mine_.failed = other->second.failed;
    mine_.code = other->second.code;
    return true;
  }
  return false;
}

bool Census::unanimous() const {
  return std::all_of(members_.begin(), members_.end(), [&](int32_t rank) {
    if (rank == mine_.rank || gone(rank)) return true;
    const auto other = others_.find(rank);
    return other != others_.end() && other->second.failed == mine_.failed;
  });
}

std::optional<Stand> Census::advance(const std::map<int32_t, bool>& lost) {
  if (declined_ && said_ != mine_ && !others_.empty()) {
    said_ = mine_;
    return mine_;
  }
  if (!begun() || decided() || expelled_) return std::nullopt;
  // before the losses: they may be of ranks that this rank has not yet held for gone
  if (take_over()) {
    expelled_ = gone(mine_.rank);
    mine_.decided = !expelled_;
  } else {
    while (grow(lost)) {
    }
    expelled_ = gone(mine_.rank);
    mine_.decided = !expelled_ && unanimous();
    for (const int32_t rank : members_)  // the worst code holds
      if (mine_.decided && rank != mine_.rank && !gone(rank))
        mine_.code = std::min(mine_.code, others_.at(rank).code);
  }
  if (expelled_ || mine_ == said_) return std::nullopt;
  said_ = mine_;
  return mine_;
}

std::vector<Stand> Census::all() const {
  std::vector<Stand> all;
  for (const auto& [rank, stand] : others_) all.push_back(stand);
  if (said_.rank >= 0) all.push_back(said_);
  return all;
}

std::vector<int32_t> Census::missing() const {
  std::vector<int32_t> missing;
  std::copy_if(members_.begin(), members_.end(), std::back_inserter(missing), [&](int32_t rank) {
    return rank != mine_.rank && !gone(rank) && !others_.contains(rank);
  });
  return missing;
}

}  // namespace fsccl
