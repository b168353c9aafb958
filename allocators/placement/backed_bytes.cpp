#include "allocators/placement/backed_bytes.h"

#include <algorithm>

namespace fsccl {
namespace {

// Before place() gives any bytes back, those that exist may exceed the needed ones by one part in
// kMargin, or by `unit_` if that is more.
constexpr uint64_t kMargin = 32;

// Returns the ranges from `from` on that exist and belong to no slot, by address.
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

// Gives back `bytes` bytes of these ranges, in whole pages, beginning with the ranges that were
// given back first.
void BackedBytes::give(Ranges free, uint64_t bytes, CollectiveRegion& slots, Change* change) const {
  bytes = round_up(bytes, CollectiveRegion::kAlignment);
  const auto since = [&](const auto& range) { return slots.given_back(range.first, range.second); };
  std::stable_sort(free.begin(), free.end(),
                   [&](const auto& a, const auto& b) { return since(a) < since(b); });
  for (const auto& range : free) {
    const uint64_t part = std::min(bytes, range.second - range.first);
    if (part == 0) break;
    change->given_back.emplace_back(range.second - part, range.second);
    change->released =
        std::max(change->released, slots.given_back(range.second - part, range.second));
    bytes -= part;
  }
}

BackedBytes::Change BackedBytes::place(uint64_t begin, uint64_t end, CollectiveRegion& slots,
                                       uint64_t most) const {
  Change change{.given_back = {}, .made = backed_.missing(begin, end)};
  if (change.made.empty()) return change;
  uint64_t exist = bytes();
  for (const auto& [from, to] : change.made) exist += to - from;
  const uint64_t needed = std::max(slots.plan_bytes(), slots.live());
  const uint64_t wanted = std::min(needed + std::max(needed / kMargin, unit_), most);
  if (exist > wanted) give(idle(backed_, slots.held_ranges(), 0), exist - wanted, slots, &change);
  for (const auto& [from, to] : change.given_back) exist -= to - from;
  if (end > reach()) {  // adds the rest of a huge page, as far as there is room
    const uint64_t room = (most - std::min(exist, most)) / CollectiveRegion::kAlignment *
                          CollectiveRegion::kAlignment;
    change.made.back().second = end + std::min(round_up(end, unit_) - end, room);
  }
  return change;
}

BackedBytes::Change BackedBytes::spare(uint64_t bytes, CollectiveRegion& slots) const {
  Change change;
  if (bytes) give(idle(backed_, slots.held_ranges(), 0), bytes, slots, &change);
  return change;
}

BackedBytes::Change BackedBytes::mend(uint64_t whole, CollectiveRegion& slots) const {
  Change change{.given_back = idle(backed_, slots.held_ranges(), whole),
                .made = backed_.missing(0, whole)};
  for (const auto& [begin, end] : change.given_back)
    change.released = std::max(change.released, slots.given_back(begin, end));
  return change;
}

uint64_t BackedBytes::bytes_if_mended(uint64_t whole, CollectiveRegion& slots) const {
  uint64_t bytes = whole;
  for (const auto& [begin, end] : slots.held_ranges())
    if (end > whole) bytes += end - std::max(begin, whole);
  return bytes;
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
