// A step that repeats, as a table of rows. Once a whole step has gone by its plan and left
// everything as it found it, every answer to a take or a give-back is known from its place in the
// step, except for the history position at which the bytes were last given back. These positions
// are kept beside the rows: one for each row, and one more for each take of bytes that were given
// back before the step began. Nothing is searched and no node is touched until an event deviates.
// CollectiveRegion::leave_table() (by_table.cpp) then applies the rows passed so far to the search
// structures.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocators/placement/step_schedule.h"

namespace fsccl {

class StepTable {
 public:
  struct Row {
    StepEvent event;  // with the rounded bytes of the slot, for a give-back too
    // The hash of the history after this row is the hash before the step, times `power`, plus
    // `digests`.
    uint64_t power = 1;
    uint64_t digests = 0;  // see `power`
    uint64_t offset = 0;   // offset of the slot that is taken or given back
    // For a take: the index, in the positions kept beside the rows, of the position at which any of
    // these bytes were last given back.
    uint32_t freed_by = 0;
    uint32_t takes_so_far = 0;
    uint64_t live = 0;  // bytes of the slots held after this row

    bool is_take(uint64_t key, uint64_t bytes, bool stable, uint32_t stream) const {
      return event.op == StepOp::kTake && event.key == key && event.bytes - bytes < kAlignment &&
             event.stable == stable && event.stream == stream;
    }
    bool is_give_back(uint64_t key) const {
      return event.op == StepOp::kGiveBack && event.key == key;
    }
    bool is_order(StepOp op, uint64_t key, uint32_t stream) const {
      return event.op == op && event.key == key && event.stream == stream;
    }
  };
  static constexpr uint64_t kAlignment = 4096;  // sizes are rounded up to this

  // For each event, the hash of a history is multiplied by this, and the digest of the event is
  // added. The digest covers the bytes of the slot, for a give-back too. So what a whole step does
  // to the hash is known when the table is made.
  static constexpr uint64_t kHashFactor = 0x9e3779b97f4a7c15U;
  static uint64_t digest(const StepEvent& event, uint64_t offset);

  // A take of bytes that no earlier event of the step gives back.
  struct Early {
    uint32_t row = 0;
    uint32_t freed_by = 0;  // the row that gives them back if the step before was the same
  };

  // Makes the table of a step that begins and ends with the slots `held` and goes as planned. The
  // positions of early takes have the numbers from `first_early` on, in order.
  void build(const StepSchedule& plan, const HeldSlots& held, size_t first_early);
  const std::vector<Early>& early() const { return early_; }
  bool empty() const { return size_ == 0; }
  uint64_t takes_before(size_t row) const { return row == 0 ? 0 : rows_[row - 1].takes_so_far; }
  size_t size() const { return size_; }
  const Row& operator[](size_t row) const { return rows_[row]; }

 private:
  std::vector<Row> rows_;
  size_t size_ = 0;  // number of rows_, because the vector computes it with a division
  std::vector<Early> early_;
};

}  // namespace fsccl
