#include "allocators/pool/backed_bytes.h"

#include <algorithm>

namespace fsccl {
namespace {

constexpr uint64_t kMargin = 32;  // one part in so many above what is needed may exist before anything is given back

// What exists from `from` on and is no slot's, by address.
BackedBytes::Ranges idle(const ByteRanges& backed, const BackedBytes::Ranges& held, uint64_t from) {
  BackedBytes::Ranges idle;
  for (const auto& [begin, end] : backed.ranges()) {
    uint64_t at = std::max(begin, from);
    for (const auto& [slot, slot_end] : held) {
      if (slot_end <= at || slot >= end) continue;
      if (slot > at) idle.emplace_back(at, slot);
      at = slot_end;
    }
    if (at < end) idle.emplace_back(at, end);
  }
  return idle;
}

}  // namespace

BackedBytes::Change BackedBytes::place(uint64_t begin, uint64_t end, CollectiveRegion& slots) const {
  Change change{.given_back = {}, .made = backed_.missing(begin, end)};
  uint64_t exist = bytes();
  for (const auto& [from, to] : change.made) exist += to - from;
  const uint64_t needed = std::max(slots.plan_bytes(), slots.live()), most = needed + std::max(needed / kMargin, unit_);
  if (end > reach()) change.made.back().second = round_up(end, unit_);
  if (exist <= most) return change;
  uint64_t over = round_up(exist - most, CollectiveRegion::kAlignment);  // as all offsets are
  Ranges free = idle(backed_, slots.held_ranges(), 0);
  const auto since = [&](const auto& range) { return slots.given_back(range.first, range.second); };
  std::stable_sort(free.begin(), free.end(), [&](const auto& a, const auto& b) { return since(a) < since(b); });
  for (const auto& range : free) {
    const uint64_t part = std::min(over, range.second - range.first);
    if (part == 0) break;
    change.given_back.emplace_back(range.second - part, range.second);
    change.released = std::max(change.released, slots.given_back(range.second - part, range.second));
    over -= part;
  }
  return change;
}

BackedBytes::Change BackedBytes::mend(CollectiveRegion& slots) const {
  const uint64_t extent = extent_of(slots);
  return {.given_back = idle(backed_, slots.held_ranges(), extent), .made = backed_.missing(0, extent)};
}

BackedBytes::Ranges BackedBytes::more_than(const BackedBytes& before) const {
  Ranges more;
  for (const auto& [begin, end] : backed_.ranges())
    for (const auto& range : before.backed_.missing(begin, end)) more.push_back(range);
  return more;
}

void BackedBytes::made(uint64_t begin, uint64_t end) {
  for (const auto& [from, to] : backed_.missing(begin, end)) backed_.add(from, to);
  whole_ = backed_.missing(0, UINT64_MAX).front().first;
}

void BackedBytes::given_back(uint64_t begin, uint64_t end) {
  backed_.remove(begin, end);
  whole_ = std::min(whole_, begin);
}

}  // namespace fsccl
