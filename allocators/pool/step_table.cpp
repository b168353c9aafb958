#include "allocators/pool/step_table.h"

#include "allocators/pool/byte_history.h"

namespace fsccl {

void StepTable::build(const StepSchedule& plan, const HeldSlots& held, const std::vector<uint64_t>& positions) {
  const size_t count = plan.events.size();
  rows_.resize(count);
  struct Slot {
    uint64_t offset, bytes;
  };
  std::unordered_map<uint64_t, Slot> slots;
  for (const auto& [key, slot] : held) slots[key] = {slot.offset, slot.bytes};
  for (size_t i = 0; i < count; ++i) {
    Row& row = rows_[i];
    row = {.event = plan.events[i], .offset = plan.offset[i], .position = positions[i]};
    Slot& slot = slots[row.event.key];
    if (row.event.take) slot = {row.offset, row.event.bytes};
    row.offset = slot.offset;
    row.event.bytes = slot.bytes;
  }
  // Over two rounds, so that each take finds what was given back in the step before. Positions in this history: rows, from 1.
  ByteHistory last;
  for (size_t at = 0; at < 2 * count; ++at) {
    Row& row = rows_[at % count];
    const uint64_t end = row.offset + row.event.bytes;
    if (!row.event.take)
      last.set(row.offset, end, at + 1);
    else if (at >= count)
      row.freed_by = (last.latest(row.offset, end) - 1) % count;
  }
}

}  // namespace fsccl
