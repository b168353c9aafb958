#include "bootstrap/neighbourhood.h"

#include <map>

#include "bootstrap/tree_steps.h"

namespace fsccl {

bool same_process(const Member& a, const Member& b) {
  return a.host == b.host && a.pid == b.pid && a.start_time == b.start_time;
}

std::vector<size_t> share_of_looks(size_t place, size_t ranks) {
  std::vector<size_t> places;
  for (size_t behind = 1; behind < ranks; behind *= 2) places.push_back((place + behind) % ranks);
  return places;
}

Neighbourhood::Neighbourhood(const std::vector<Member>& members,
                             const std::vector<int32_t>& arrivals)
    : members_(members), arrivals_(arrivals), places_(members.size()) {
  std::map<uint64_t, size_t> numbers;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const size_t host = numbers.try_emplace(members[rank].host, hosts_.size()).first->second;
    if (host == hosts_.size()) hosts_.emplace_back();
    places_[rank].host = host;
    places_[rank].line = hosts_[host].size();
    hosts_[host].push_back(static_cast<int32_t>(rank));
  }
  for (size_t order = 0; order < arrivals.size(); ++order)
    places_[static_cast<size_t>(arrivals[order])].order = static_cast<int32_t>(order);
}

std::vector<int32_t> Neighbourhood::beside(int32_t rank) const {
  const std::vector<int32_t>& ring = mates(rank);
  std::vector<int32_t> ranks;
  const auto walk = [&](size_t step) {
    for (size_t at = (line_of(rank) + step) % ring.size(); ring[at] != rank;
         at = (at + step) % ring.size()) {
      ranks.push_back(ring[at]);
      if (!same_process(members_[static_cast<size_t>(ring[at])],
                        members_[static_cast<size_t>(rank)]))
        return;
    }
  };
  walk(1);
  walk(ring.size() - 1);
  return ranks;
}

std::vector<int32_t> Neighbourhood::in_tree(int32_t rank) const {
  const int64_t order = places_[static_cast<size_t>(rank)].order, first = order * kFanOut + 1;
  std::vector<int32_t> ranks;
  if (order > 0)
    ranks.push_back(arrivals_[static_cast<size_t>(parent_order(static_cast<int32_t>(order)))]);
  for (int64_t child = first;
       child < first + kFanOut && child < static_cast<int64_t>(arrivals_.size()); ++child)
    ranks.push_back(arrivals_[static_cast<size_t>(child)]);
  return ranks;
}

}  // namespace fsccl
