#include "redistribute/redistribution.h"

#include <algorithm>

namespace fsccl {
namespace {

// Returns the runs of the bytes from `begin` up to `end`, counted over all runs end to end.
std::vector<Redistribution::Run> cut(const std::vector<Redistribution::Run>& runs, uint64_t begin,
                                     uint64_t end) {
  std::vector<Redistribution::Run> part;
  uint64_t at = 0;
  for (const Redistribution::Run& run : runs) {
    const uint64_t first = std::max(begin, at), last = std::min(end, at + run.bytes);
    if (first < last)
      part.push_back({run.buffer, run.from + (first - at), run.to + (first - at), last - first});
    at += run.bytes;
  }
  return part;
}

}  // namespace

// Returns the bytes of an old shard that belong to the new shard of `taker`.
std::vector<Redistribution::Run> Redistribution::needed(int shard, int taker) const {
  std::vector<Run> runs;
  for (size_t k = 0; k < buffers.size(); k++) {
    const Piece old = from.piece(shard, buffers[k].param);
    const Piece wanted = to.piece(members[static_cast<size_t>(taker)].takes, buffers[k].param);
    const uint64_t begin = std::max(old.begin, wanted.begin);
    const uint64_t end = std::min(old.begin + old.count, wanted.begin + wanted.count),
                   size = buffers[k].element_bytes;
    if (begin < end)
      runs.push_back(
          {k, (begin - old.begin) * size, (begin - wanted.begin) * size, (end - begin) * size});
  }
  return runs;
}

std::vector<Redistribution::Run> Redistribution::runs(int giver, int taker) const {
  const int shard = members[static_cast<size_t>(giver)].holds;
  const Member& wants = members[static_cast<size_t>(taker)];
  if (shard < 0 || wants.takes < 0) return {};
  if (wants.holds == shard) return giver == taker ? needed(shard, taker) : std::vector<Run>{};
  std::vector<int> givers, near;
  for (size_t rank = 0; rank < members.size(); rank++) {
    if (members[rank].holds != shard) continue;
    givers.push_back(static_cast<int>(rank));
    if (members[rank].host == wants.host) near.push_back(static_cast<int>(rank));
  }
  if (!near.empty()) givers = std::move(near);
  const auto place =
      static_cast<uint64_t>(std::find(givers.begin(), givers.end(), giver) - givers.begin());
  if (place == givers.size()) return {};
  const std::vector<Run> all = needed(shard, taker);
  uint64_t bytes = 0;
  for (const Run& run : all) bytes += run.bytes;
  const uint64_t share = bytes / givers.size(), rest = bytes % givers.size();
  const uint64_t begin = place * share + std::min(place, rest);
  return cut(all, begin, begin + share + (place < rest ? 1 : 0));
}

std::vector<int> Redistribution::missing(const Layout& layout, int Member::* role) const {
  std::vector<int> missing;
  for (int shard = 0; shard < layout.ranks(); shard++) {
    const bool there = std::any_of(members.begin(), members.end(),
                                   [&](const Member& party) { return party.*role == shard; });
    const bool holds_something = std::any_of(
        buffers.begin(), buffers.end(),
        [&](const Buffer& buffer) { return layout.piece(shard, buffer.param).count > 0; });
    if (!there && holds_something) missing.push_back(shard);
  }
  return missing;
}

std::vector<int> Redistribution::not_held() const { return missing(from, &Member::holds); }
std::vector<int> Redistribution::not_taken() const { return missing(to, &Member::takes); }

}  // namespace fsccl
