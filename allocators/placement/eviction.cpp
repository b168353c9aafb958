#include "allocators/placement/eviction.h"

#include <algorithm>

namespace fsccl {
namespace {

constexpr int kStages = 8;        // a failed attempt spends at most 1 / kStages of the effort
constexpr uint64_t kNear = 1024;  // two limits that differ by one part in so many are alike

}  // namespace

Eviction::Eviction(const PackingProblem& problem) : problem_(problem), items_(problem.items) {}

void Eviction::improve(Packing& packing, uint64_t enough, int64_t& effort) {
  enough = enough / problem_.alignment * problem_.alignment;
  const int64_t stage = effort / kStages;
  // A good start may lead to nothing better, so this first tries to pack from nothing within
  // `enough`.
  std::vector<uint64_t> nothing;
  for (const PackingItem& item : items_) nothing.push_back(item.pinned);
  try_within(enough, std::move(nothing), packing, stage, effort);
  uint64_t low = problem_.target;  // no packing was found within it, or there is none
  while (packing.bytes > enough && packing.bytes > low + problem_.target / kNear && effort > 0) {
    const uint64_t limit =
        (low + (packing.bytes - low) / 2) / problem_.alignment * problem_.alignment;
    if (!try_within(limit, packing.offset, packing, stage, effort)) low = limit;
  }
}

bool Eviction::try_within(uint64_t limit, std::vector<uint64_t> start, Packing& packing,
                          int64_t most_effort, int64_t& effort) {
  offset_ = std::move(start);
  int64_t left = std::min(most_effort, effort);
  effort -= left;
  const bool packed = pack(limit, left);
  effort += left;
  if (!packed) return false;
  packing = {.offset = offset_, .bytes = 0};
  for (size_t i = 0; i < items_.size(); ++i)
    packing.bytes = std::max(packing.bytes, offset_[i] + items_[i].bytes);
  return true;
}

bool Eviction::pack(uint64_t limit, int64_t& effort) {
  missed_.assign(items_.size(), 1);
  waiting_.clear();
  for (uint32_t i = 0; i < items_.size(); ++i)
    if (evictable(i) && offset_[i] > limit - items_[i].bytes) evict(i);
  while (!waiting_.empty() && effort > 0) {
    std::pop_heap(waiting_.begin(), waiting_.end(), smaller());
    const uint32_t item = waiting_.back();
    waiting_.pop_back();
    if (!place(item, limit, effort)) return false;
  }
  return waiting_.empty();
}

void Eviction::evict(uint32_t item) {
  offset_[item] = SlotRequest::kAnywhere;
  waiting_.push_back(item);
  std::push_heap(waiting_.begin(), waiting_.end(), smaller());
}

bool Eviction::place(uint32_t item, uint64_t limit, int64_t& effort) {
  const uint64_t bytes = items_[item].bytes;
  busy_.clear();
  for (const uint32_t other : items_[item].meets)
    if (offset_[other] != SlotRequest::kAnywhere)
      busy_.push_back({offset_[other], offset_[other] + items_[other].bytes, other});
  std::sort(busy_.begin(), busy_.end(),
            [](const Busy& a, const Busy& b) { return a.from < b.from; });
  effort -= static_cast<int64_t>(items_[item].meets.size()) + 1;
  uint64_t at = tightest_gap(bytes, limit);
  if (at == SlotRequest::kAnywhere) {
    ++missed_[item];
    at = cheapest_place(bytes, limit, effort);
    if (at == SlotRequest::kAnywhere) return false;
    for (const Busy& other : busy_)
      if (other.from < at + bytes && other.to > at) evict(other.item);
  }
  offset_[item] = at;
  return true;
}

// Returns an offset at either end of the tightest gap.
uint64_t Eviction::tightest_gap(uint64_t bytes, uint64_t limit) {
  uint64_t end = 0, best = SlotRequest::kAnywhere, least = UINT64_MAX;
  const auto look = [&](uint64_t from) {
    if (from <= end || from - end < bytes || from - end >= least) return;
    least = from - end;
    best = random_() % 2 ? end : from - bytes;
  };
  for (const Busy& other : busy_) {
    look(other.from);
    end = std::max(end, other.to);
  }
  look(limit);
  return best;
}

// Returns the offset at which the evicted items cost least, beside one of the others or at an end
// of the range. Among offsets that cost the same it picks one at random.
uint64_t Eviction::cheapest_place(uint64_t bytes, uint64_t limit, int64_t& effort) {
  uint64_t best = SlotRequest::kAnywhere, least = UINT64_MAX;
  uint32_t alike = 0;
  const auto look = [&](uint64_t at) {
    if (at > limit || limit - at < bytes) return;
    uint64_t cost = 0;
    for (const Busy& other : busy_) {
      if (other.from >= at + bytes || cost > least) break;
      --effort;
      if (other.to <= at) continue;
      if (!evictable(other.item)) return;
      cost += missed_[other.item];
    }
    if (cost > least) return;
    alike = cost < least ? 1 : alike + 1;
    least = cost;
    if (random_() % alike == 0) best = at;
  };
  look(0);
  look(limit - bytes);
  for (const Busy& other : busy_) {
    look(other.to);
    if (other.from >= bytes) look(other.from - bytes);
  }
  return best;
}

}  // namespace fsccl
