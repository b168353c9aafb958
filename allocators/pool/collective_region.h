// Slots of units: placement that is equal on every rank because it is a pure function of the history of collective memory events
// (take and give back, in the order of the program), never of what happened to complete first. One object per pool for the
// host-shared slots and one for the per-rank slots (gradients, private parameters).
//
// It records the events of the first step, plans them (planner.h), and from then on serves each event from the plan by position; a
// step that has gone by its plan twice is served from a table (step_table.h). A request that deviates is served beside the plan
// from what is free, and counted; when the same deviating step comes twice in a row it becomes the plan. Positions in the history
// are numbers that grow by one at each event; the hash of the whole history goes into the fingerprints of operations.
//
// Stable keys (a unit's parameters) have one offset in every occurrence of the schedule: from the first step on when the schedule
// was declared, else from the second step on. In the recorded step, and in a step that deviates, a stable key gets its last offset
// when that is free; when it is not, the grant says `moved`. (To promise more there would take memory for the whole model in the
// first step.) A new plan moves slots at a step boundary only, and none that is held across it.
//
// Where several streams use slots, the region is told which (use) and what orders them (record, wait); that is part of the step.
// Bytes go from one slot to the next without a wait of the region's own wherever there is a choice: on the planned path always,
// unless the step before went another way.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "allocators/pool/byte_history.h"
#include "allocators/pool/cooling_slots.h"
#include "allocators/pool/least_harm.h"
#include "allocators/pool/region.h"
#include "allocators/pool/step_schedule.h"
#include "allocators/pool/step_table.h"
#include "base/status.h"

namespace fsccl {

struct SlotGrant {
  uint64_t offset = 0;
  uint64_t free_since = 0;  // history position at which the last previous user of any of these bytes gave them back (0: never used)
  bool moved = false;       // a stable key whose previous occurrence had another offset
  uint32_t waits = 0;  // streams, a bit each, that the slot's stream must be made to wait for first: no edge orders it behind them
};

class CollectiveRegion {
 public:
  using Event = StepEvent;
  static constexpr uint64_t kAlignment = StepTable::kAlignment;  // of every offset; sizes are rounded up to it
  static constexpr size_t kMostEvents = size_t{1} << 18;         // of a step; a longer one is not planned

  CollectiveRegion(uint64_t capacity, bool record, uint32_t streams = 1);
  CollectiveRegion(const CollectiveRegion&) = default;
  CollectiveRegion& operator=(const CollectiveRegion&) = default;

  // `key`: who asks (unit and role), stable over steps; a key holds at most one slot. `stable`: one offset in every occurrence
  // (parameters). `position`: the event's place in the pool's history, above 0, given by the caller (one counter for all regions of
  // a pool).
  Result<SlotGrant> take(uint64_t key, uint64_t bytes, bool stable, uint64_t position, uint32_t stream = 0) {
    const StepTable::Row* row = table_.find(next_);
    if (!row || !row->is_take(key, bytes, stable, stream)) [[unlikely]]
      return take_off_table(key, bytes, stable, position, stream);
    went_by(*row);
    return SlotGrant{.offset = row->offset, .free_since = table_[row->freed_by].position};
  }
  Status give_back(uint64_t key, uint64_t position) {
    StepTable::Row* row = table_.find(next_);
    if (!row || !row->is_give_back(key)) [[unlikely]]
      return give_back_off_table(key, position);
    row->position = position;
    went_by(*row);
    return success();
  }
  // Work that touches the slot is put on the stream (a take says so for its own stream). An event between streams is a number that
  // means the same in every step, such as one a unit and purpose; to record it again replaces it.
  Status use(uint64_t key, uint32_t stream) { return order(StepOp::kUse, key, stream); }
  Status record(uint64_t event, uint32_t stream) { return order(StepOp::kRecord, event, stream); }
  Status wait(uint64_t event, uint32_t stream) { return order(StepOp::kWait, event, stream); }
  bool holds(uint64_t key) const;  // by search

  // A declared schedule, between steps: a new step begins. Slots that are held now are taken as kept across steps; an event that
  // takes one of them again says nothing.
  Status declare(const std::vector<Event>& events);
  void end_step();  // step boundary

  // No slot reaches beyond it from now on, and no plan. Above what is in use, and the same on all ranks.
  void set_capacity(uint64_t bytes) {
    capacity_ = bytes;
    region_.set_capacity(bytes);
  }
  uint64_t extent() const;  // bytes from 0 that must exist: max over plan and use
  uint64_t live() const { return table_.empty() || next_ == 0 ? live_ : table_[next_ - 1].live; }
  uint64_t peak() const { return peak_; }
  uint64_t plan_bytes() const { return plan_ ? plan_->bytes : 0; }
  uint64_t plan_bound() const { return plan_ ? plan_->bound : 0; }                             // most bytes live at once
  uint64_t plan_clique_bound() const { return plan_ ? plan_->clique_bound : 0; }               // most bytes that may not overlap
  uint64_t hits() const { return hits_ + (table_.empty() ? 0 : table_.takes_before(next_)); }  // takes served from the plan
  uint64_t misses() const { return misses_; }            // takes served beside it (none while there is no plan)
  uint64_t added_waits() const { return added_waits_; }  // of a stream for another, that grants asked for
  bool by_table() const { return !table_.empty(); }      // the step is served from the table so far
  uint64_t hash() const { return hash_; }                // of the history

 private:
  // What the table does not expect next.
  Result<SlotGrant> take_off_table(uint64_t key, uint64_t bytes, bool stable, uint64_t position, uint32_t stream);
  Status give_back_off_table(uint64_t key, uint64_t position);
  Status order_off_table(const Event& event);

  Status order(StepOp op, uint64_t key, uint32_t stream) {
    const StepTable::Row* row = table_.find(next_);
    if (!row || !row->is_order(op, key, stream)) [[unlikely]]
      return order_off_table({.op = op, .stream = stream, .key = key});
    went_by(*row);
    return success();
  }
  void went_by(const StepTable::Row& row) {
    ++next_;
    mix(row.digest);
  }
  void leave_table();
  void follow(const Event& event);
  void free_bytes(const HeldSlot& slot);
  std::optional<uint64_t> place(const Event& event, uint32_t* waits);
  std::optional<uint32_t> occupy(const Event& event, uint64_t offset);
  std::optional<uint64_t> place_anywhere(const Event& event);
  std::optional<uint64_t> place_beside_plan(const Event& event);
  std::vector<ExpectedSlot> expected_beside(const Event& event, std::optional<uint32_t> at) const;
  bool on_plan(const Event& event) const;
  void deviate();
  void note(const Event& event);
  bool adopt(StepSchedule schedule);
  void end_streams_step();
  void mix(const Event& event, uint64_t offset) { mix(StepTable::digest(event, offset)); }
  void mix(uint64_t digest) { hash_ = std::rotl(hash_ ^ digest, 29) * 0x9e3779b97f4a7c15U; }

  uint64_t capacity_;
  bool record_;
  uint32_t streams_;
  Region region_;
  StreamOrder order_;
  CoolingSlots cooling_;
  NodeMemory nodes_;
  HeldSlots held_{nodes_.get()};
  std::unordered_map<uint64_t, uint64_t> last_offset_;  // of stable keys
  ByteHistory given_back_;

  std::optional<StepSchedule> plan_;
  bool following_ = false;  // every event of this step was as planned
  size_t next_ = 0;         // the plan's event that is expected next, while following
  uint32_t reached_ = 0;    // in the plan, by this step's takes, while not following
  uint64_t most_extent_ = 0;
  int steps_followed_ = 0;                             // to their end, without a break
  std::vector<uint64_t> given_back_at_;                // positions of this step's events, while following
  std::vector<uint64_t> differences_;                  // between the streams, at the last step boundary
  bool as_before_ = false;                             // they were the same at the one before, and no wait was added
  StepTable table_;                                    // while it is not empty, what lies above is as it was when it was made
  std::unordered_map<uint64_t, uint32_t> occurrence_;  // takes of each key in this step, when not following
  std::vector<Event> events_;                          // of this step, when not following and recording
  std::vector<Event> previous_;                        // of the step before, if it deviated

  uint64_t step_events_ = 0;                           // since the last step boundary
  uint64_t added_waits_ = 0, added_waits_before_ = 0;  // before: at the last step boundary
  uint64_t live_ = 0, peak_ = 0, hits_ = 0, misses_ = 0, hash_ = 0;
};

}  // namespace fsccl
