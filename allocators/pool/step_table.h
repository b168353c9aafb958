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
    uint64_t offset = 0;    // of the slot that is taken or given back
    uint64_t position = 0;  // give-back: when it was done last
    size_t freed_by = 0;    // take: the row that gave back any of these bytes last, in this step or the one before
  };

  // A step that begins and ends with `held`, which has gone as planned. `positions`: of its give-backs, one per event.
  void build(const StepSchedule& plan, const HeldSlots& held, const std::vector<uint64_t>& positions);
  void clear() { rows_.clear(); }
  bool empty() const { return rows_.empty(); }
  size_t size() const { return rows_.size(); }
  Row& operator[](size_t row) { return rows_[row]; }
  const Row& operator[](size_t row) const { return rows_[row]; }

 private:
  std::vector<Row> rows_;
};

}  // namespace fsccl
