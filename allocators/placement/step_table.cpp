#include "allocators/placement/step_table.h"

#include "allocators/placement/byte_history.h"
#include "base/hash.h"

namespace fsccl {
uint64_t StepTable::digest(const StepEvent& event, uint64_t offset) {
  return mix_in_order(
      mix_in_order(
          mix_in_order(uint64_t{event.stream} << 8 | static_cast<uint64_t>(event.op), event.key),
          offset),
      event.bytes);
}

void StepTable::build(const StepSchedule& plan, const HeldSlots& held, size_t first_early) {
  const size_t count = plan.events.size();
  rows_.resize(count);
  size_ = count;
  struct Slot {
    uint64_t offset, bytes;
  };
  std::unordered_map<uint64_t, Slot> slots;
  uint32_t takes = 0;
  uint64_t live = 0;
  for (const auto& [key, slot] : held) {
    slots[key] = {slot.offset, slot.bytes};
    live += slot.bytes;
  }
  for (size_t i = 0; i < count; ++i) {
    Row& row = rows_[i];
    row = {.event = plan.events[i], .offset = plan.offset[i]};
    if (row.event.moves_slot()) {
      Slot& slot = slots[row.event.key];
      if (row.event.takes()) slot = {row.offset, row.event.bytes};
      row.offset = slot.offset;
      row.event.bytes = slot.bytes;
    }
    takes += row.event.takes();
    if (row.event.takes()) live += row.event.bytes;
    if (row.event.op == StepOp::kGiveBack) live -= row.event.bytes;
    row.takes_so_far = takes;
    row.live = live;
    row.power = (i > 0 ? rows_[i - 1].power : 1) * kHashFactor;
    row.digests = (i > 0 ? rows_[i - 1].digests : 0) * kHashFactor + digest(row.event, row.offset);
  }
  // Goes over the rows twice, so that each take finds what was given back in the step before. A
  // position in this history is the number of a row, counted from 1 over both rounds.
  ByteHistory last;
  early_.clear();
  for (size_t at = 0; at < 2 * count; ++at) {
    Row& row = rows_[at % count];
    if (!row.event.moves_slot()) continue;
    const uint64_t end = row.offset + row.event.bytes;
    if (!row.event.takes()) last.set(row.offset, end, at + 1);
    if (!row.event.takes() || at < count) continue;
    const uint64_t freed = last.latest(row.offset, end) - 1;
    if (freed < count) {
      row.freed_by = static_cast<uint32_t>(first_early + early_.size());
      early_.push_back({static_cast<uint32_t>(at - count), static_cast<uint32_t>(freed)});
    } else {
      row.freed_by = static_cast<uint32_t>(freed - count);
    }
  }
}

}  // namespace fsccl
