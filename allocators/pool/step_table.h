// A step that repeats, as rows to be walked through: once a whole step has gone by its plan twice, everything that a take or a
// give-back has to answer is known from its place in the step, but for the history position at which the bytes were given back
// last, and that is in the row of the event that gave them back. So nothing is searched and no node is touched until an event
// deviates; then the rows say what the search structures have missed (CollectiveRegion::leave_table).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocators/pool/step_schedule.h"

namespace fsccl {

class StepTable {
 public:
  struct Row {
    StepEvent event;        // bytes rounded up; of a give-back too
    uint64_t digest = 0;    // of it, for the hash of the history
    uint64_t offset = 0;    // of the slot that is taken or given back
    uint64_t position = 0;  // give-back: when it was done last
    uint32_t freed_by = 0;  // take: the row that gave back any of these bytes last, in this step or the one before
    uint32_t takes_so_far = 0;
    uint64_t live = 0;  // bytes held after it

    bool is_take(uint64_t key, uint64_t bytes, bool stable, uint32_t stream) const {
      return event.op == StepOp::kTake && event.key == key && event.bytes - bytes < kAlignment && event.stable == stable &&
             event.stream == stream;
    }
    bool is_give_back(uint64_t key) const { return event.op == StepOp::kGiveBack && event.key == key; }
    bool is_order(StepOp op, uint64_t key, uint32_t stream) const {
      return event.op == op && event.key == key && event.stream == stream;
    }
  };
  static constexpr uint64_t kAlignment = 4096;  // what sizes are rounded up to

  // What the event adds to the hash of the history; `event` with its bytes, of a give-back too.
  static uint64_t digest(const StepEvent& event, uint64_t offset);

  // A step that begins and ends with `held`, which has gone as planned. `positions`: of its give-backs, one per event.
  void build(const StepSchedule& plan, const HeldSlots& held, const std::vector<uint64_t>& positions);
  void clear() { rows_.clear(); }
  bool empty() const { return rows_.empty(); }
  uint64_t takes_before(size_t row) const { return row == 0 ? 0 : rows_[row - 1].takes_so_far; }
  size_t size() const { return rows_.size(); }
  Row* find(size_t row) { return row < rows_.size() ? &rows_[row] : nullptr; }
  Row& operator[](size_t row) { return rows_[row]; }
  const Row& operator[](size_t row) const { return rows_[row]; }

 private:
  std::vector<Row> rows_;
};

}  // namespace fsccl
