// The part of the collective region that serves steps from tables (step_table.h). Each known step
// may have a table. The region enters a table when a step has left everything as it found it,
// changes to the table of another known step where the two steps part, and leaves the table when an
// event deviates. While a table is active, the search structures (region_, order_, cooling_, held_)
// stay as they were at a step boundary. It does not matter at which one, since each step that goes
// by a table ends as it began.
#include <algorithm>

#include "allocators/placement/collective_region.h"
#include "base/hash.h"

namespace fsccl {

// Notes in given_back_ what the step before gave back in this row and in later ones, if that step
// went by the active table. The give-backs of the present step, in earlier rows, have higher
// positions, so the caller notes them afterwards.
void CollectiveRegion::note_table_before(size_t row) {
  if (!std::exchange(table_before_, false)) return;
  for (; row < table_.size(); ++row) note_row(row);
}

void CollectiveRegion::note_row(size_t row) {
  const StepTable::Row& at = table_[row];
  if (at.event.op == StepOp::kGiveBack)
    given_back_.set(at.offset, at.offset + at.event.bytes, positions_[row]);
}

// Goes on with the table of the known step `step`, whose first events are those of the present step
// so far.
void CollectiveRegion::change_table(size_t step) {
  note_table_before(next_);
  std::swap(table_, tables_[current_]);
  current_ = step;
  std::swap(table_, tables_[current_]);
  find_early();
}

// For each take of the active table whose bytes no earlier row gives back, looks up when these
// bytes were last given back.
void CollectiveRegion::find_early() {
  for (const StepTable::Early& early : table_.early()) {
    const StepTable::Row& row = table_[early.row];
    positions_[row.freed_by] = given_back_.latest(row.offset, row.offset + row.event.bytes);
  }
}

bool CollectiveRegion::goes_by_another_table(const Event& event) {
  if (table_.empty()) return false;
  const std::optional<size_t> step = known_.plan().next(current_, next_, event);
  if (!step || tables_[*step].empty()) return false;
  change_table(*step);
  return true;
}

// Ends the step, if its events are exactly those of a known step with a table. Returns false
// otherwise.
bool CollectiveRegion::end_table_step() {
  const std::optional<size_t> step =
      next_ == table_.size() ? current_ : known_.plan().ends(current_, next_);
  if (!step || (*step != current_ && tables_[*step].empty())) return false;
  if (*step != current_) change_table(*step);
  hits_ = hits();
  hash_ = hash();
  next_ = 0;
  table_before_ = true;
  for (const StepTable::Early& early : table_.early())
    positions_[table_[early.row].freed_by] = positions_[early.freed_by];
  known_.came(current_);
  return true;
}

// Enters the table of the step that has just gone by the plan, if the step began and ended in the
// same state, because it will then do so each time. All tables are for steps that begin in this one
// state.
void CollectiveRegion::enter_table() {
  uint64_t held = 0;
  for (const auto& [key, slot] : held_)
    held ^= mix_in_order(mix_in_order(key, slot.offset), slot.bytes);
  std::vector<uint64_t> state = differences_;
  state.push_back(held);
  if (as_before_ && table_state_ != state) {
    tables_.assign(tables_.size(), {});
    table_state_ = state;
  }
  if (table_state_ != state || (tables_[current_].empty() && !as_before_)) return;
  if (tables_[current_].empty()) {
    StepTable table;  // stored only when it is complete: build() may run out of memory
    table.build(known_.plan().steps[current_], held_, most_events_);
    positions_.resize(std::max(positions_.size(), most_events_ + table.early().size()));
    tables_[current_] = std::move(table);
  }
  std::swap(table_, tables_[current_]);
  table_before_ = false;
  find_early();
}

// Brings the search structures up to date: with the give-backs of the step before in rows that this
// step has not reached, and with everything that this step has done.
void CollectiveRegion::leave_table() {
  if (table_.empty()) return;
  live_ = live();
  hits_ = hits();
  hash_ = hash();
  step_events_ = next_;
  note_table_before(next_);
  for (size_t i = 0; i < next_; ++i) {
    const StepTable::Row& row = table_[i];
    if (row.event.op == StepOp::kGiveBack) {
      const HeldSlot was = held_.at(row.event.key);
      held_.erase(row.event.key);
      free_bytes(was);
      note_row(i);
      continue;
    }
    if (row.event.takes()) occupy(row.event, row.offset);
    follow(row.event);
    if (row.event.takes()) held_.at(row.event.key).offset = row.offset;
  }
  std::swap(table_, tables_[current_]);
}

}  // namespace fsccl
