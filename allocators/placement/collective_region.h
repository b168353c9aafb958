// Slots of units: placement that is equal on every rank because it is a pure function of the
// history of collective memory events (take and give back, in the order of the program), never of
// what happened to complete first. One object per pool for the host-shared slots and one for the
// per-rank slots (gradients, private parameters).
//
// It records the events of the first step, plans them (planner.h), and from then on serves each
// event from the plan by position; a step that goes by its plan is served from a table
// (step_table.h). A request that deviates is served beside the plan from what is free, and counted;
// the step is then learned: several steps are known at once and planned together (known_steps.h),
// and each event is followed in one that has gone like this step so far. Positions in the history
// are numbers that grow by one at each event; the hash of the whole history goes into the
// fingerprints of operations.
//
// Stable keys (a unit's parameters) have one offset in every occurrence in all known steps: from
// the first step on when it was declared, else from the second step on. In the recorded step, and
// in a step that deviates, a stable key gets its last offset when that is free; when it is not, the
// grant says `moved`. (To promise more there would take memory for the whole model in the first
// step.) A new plan moves slots at a step boundary only, and none that is held across it.
//
// Where several streams use slots, the region is told which (use) and what orders them (record,
// wait); that is part of the step. Bytes go from one slot to the next without a wait of the
// region's own wherever there is a choice: on the planned path always, unless the step before went
// another way.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocators/placement/byte_history.h"
#include "allocators/placement/cooling_slots.h"
#include "allocators/placement/known_steps.h"
#include "allocators/placement/least_harm.h"
#include "allocators/placement/region.h"
#include "allocators/placement/step_schedule.h"
#include "allocators/placement/step_table.h"
#include "base/status.h"

namespace fsccl {

struct SlotGrant {
  uint64_t offset = 0;
  // history position at which the last previous user of any of these bytes gave them back (0: never
  // used)
  uint64_t release_position = 0;
  bool moved = false;  // a stable key whose previous occurrence had another offset
  // streams, a bit each, that the slot's stream must be made to wait for first: no edge orders it
  // behind them
  uint32_t waits = 0;
};

class CollectiveRegion {
 public:
  using Event = StepEvent;
  // alignment of every offset; sizes are rounded up to it
  static constexpr uint64_t kAlignment = StepTable::kAlignment;
  // events of a step; a longer step is not planned
  static constexpr size_t kMostEvents = size_t{1} << 18;

  CollectiveRegion(uint64_t capacity, bool record, uint32_t streams = 1);
  CollectiveRegion(const CollectiveRegion&) = default;
  CollectiveRegion& operator=(const CollectiveRegion&) = default;

  // `key`: who asks (unit and role), stable over steps; a key holds at most one slot. `stable`: one
  // offset in every occurrence (parameters). `position`: the event's place in the pool's history,
  // above 0, given by the caller (one counter for all regions of a pool).
  Result<SlotGrant> take(uint64_t key, uint64_t bytes, bool stable, uint64_t position,
                         uint32_t stream = 0) {
    if (const StepTable::Row* row = take_by_table(key, bytes, stable, stream)) [[likely]]
      return SlotGrant{.offset = row->offset, .release_position = release_position(*row)};
    return take_off_table(key, bytes, stable, position, stream);
  }
  Status give_back(uint64_t key, uint64_t position) {
    if (give_back_by_table(key, position)) [[likely]]
      return success();
    return give_back_off_table(key, position);
  }
  // These do the same while the step goes by its table; else they do nothing and return null.
  const StepTable::Row* take_by_table(uint64_t key, uint64_t bytes, bool stable,
                                      uint32_t stream = 0) {
    if (next_ >= table_.size()) [[unlikely]]
      return nullptr;
    const StepTable::Row& row = table_[next_];
    if (!row.is_take(key, bytes, stable, stream)) [[unlikely]]
      return nullptr;
    ++next_;
    return &row;
  }
  uint64_t release_position(const StepTable::Row& taken) const {
    return positions_[taken.freed_by];
  }
  const StepTable::Row* give_back_by_table(uint64_t key, uint64_t position) {
    if (next_ >= table_.size()) [[unlikely]]
      return nullptr;
    const StepTable::Row& row = table_[next_];
    if (!row.is_give_back(key)) [[unlikely]]
      return nullptr;
    positions_[next_++] = position;
    return &row;
  }
  // use(): work that touches the slot is put on the stream (take() says so for its own stream). An
  // event between streams is a number that means the same in every step, such as one for each unit
  // and purpose; recording it again replaces it.
  Status use(uint64_t key, uint32_t stream) { return order(StepOp::kUse, key, stream); }
  Status record(uint64_t event, uint32_t stream) { return order(StepOp::kRecord, event, stream); }
  Status wait(uint64_t event, uint32_t stream) { return order(StepOp::kWait, event, stream); }
  bool holds(uint64_t key) const;  // by search

  // Makes a declared schedule one more known step; a new step begins. It is called between steps.
  // Slots that are held now are taken as kept across steps, and an event that takes one of them
  // again has no effect. A schedule without events teaches nothing.
  Status declare(const std::vector<Event>& events);
  void end_step();  // step boundary

  // From now on no slot and no plan reaches beyond `bytes`, which must be above everything in use
  // and the same on all ranks.
  void set_capacity(uint64_t bytes) {
    capacity_ = plan_capacity_ = addresses_ = bytes;
    region_.set_capacity(bytes);
  }
  // The same where free bytes can be given back (backed_bytes.h): slots of at most `bytes` bytes at
  // once lie in a larger range of addresses, and plans have at most `plan` bytes. Then the extent
  // is the plan's again at every step boundary.
  void set_capacity(uint64_t bytes, uint64_t plan, uint64_t addresses) {
    capacity_ = bytes;
    plan_capacity_ = plan;
    addresses_ = std::max(bytes, addresses);
    sparse_ = true;
    region_.set_capacity(addresses_);
  }
  // Bytes from 0 that must exist: max over plan and use since the plan was made. A new plan may
  // need less than the one before, or than the step that was recorded for it: at a step boundary
  // the extent may fall, and give_up() says that what is above is gone.
  uint64_t extent() const { return most_extent_; }
  // Bytes from 0 that should exist as a whole: the plan's, or without one all that were ever in
  // use.
  uint64_t whole_extent() const { return known_.empty() ? most_extent_ : plan_bytes(); }
  void give_up(uint64_t from, uint64_t position) { give_up(from, UINT64_MAX, position); }
  void give_up(uint64_t from, uint64_t to, uint64_t position) {
    given_back_.set(from, to, position);
  }
  // Returns the ranges [begin, end) of held slots, by address.
  std::vector<std::pair<uint64_t, uint64_t>> held_ranges();
  // Returns the position at which the last user of any of these bytes gave them back.
  uint64_t given_back(uint64_t begin, uint64_t end) {
    leave_table();
    return given_back_.latest(begin, end);
  }
  // Returns true if work may still run on some of these bytes.
  bool cooling(uint64_t begin, uint64_t end) const { return cooling_.touches(begin, end); }
  uint64_t live() const { return table_.empty() || next_ == 0 ? live_ : table_[next_ - 1].live; }
  uint64_t peak() const { return peak_; }
  uint64_t plan_bytes() const { return known_.plan().bytes; }
  // most bytes live at once
  uint64_t plan_bound() const { return known_.plan().bound; }
  // most bytes that may not overlap
  uint64_t plan_clique_bound() const { return known_.plan().clique_bound; }
  size_t known_steps() const { return known_.plan().steps.size(); }
  // takes served from the plan
  uint64_t hits() const { return hits_ + (table_.empty() ? 0 : table_.takes_before(next_)); }
  // takes served beside it (none while there is no plan)
  uint64_t misses() const { return misses_; }
  // waits of one stream for another that grants asked for
  uint64_t added_waits() const { return added_waits_; }
  bool by_table() const { return !table_.empty(); }  // the step is served from the table so far
  uint64_t hash() const {                            // hash of the history
    return table_.empty() || next_ == 0
               ? hash_
               : hash_ * table_[next_ - 1].power + table_[next_ - 1].digests;
  }

 private:
  // Takes a slot that the table does not expect next.
  Result<SlotGrant> take_off_table(uint64_t key, uint64_t bytes, bool stable, uint64_t position,
                                   uint32_t stream);
  Status give_back_off_table(uint64_t key, uint64_t position);
  Status order_off_table(const Event& event);

  Status order(StepOp op, uint64_t key, uint32_t stream) {
    if (next_ >= table_.size() || !table_[next_].is_order(op, key, stream)) [[unlikely]]
      return order_off_table({.op = op, .stream = stream, .key = key});
    ++next_;
    return success();
  }
  void note_table_before(size_t row);
  void note_row(size_t row);
  void change_table(size_t step);
  void find_early();
  bool goes_by_another_table(const Event& event);
  bool end_table_step();
  void enter_table();
  void leave_table();
  void follow(const Event& event);
  void free_bytes(const HeldSlot& slot);
  std::optional<uint64_t> place(const Event& event, uint32_t* waits);
  std::optional<uint32_t> occupy(const Event& event, uint64_t offset);
  std::optional<uint64_t> place_anywhere(const Event& event);
  std::optional<uint64_t> place_beside_plan(const Event& event);
  std::vector<ExpectedSlot> expected_beside(const Event& event, std::optional<uint32_t> at) const;
  bool on_plan(const Event& event);
  void deviate();
  void note(const Event& event);
  void begin_plan();
  void end_streams_step();
  void mix(const Event& event, uint64_t offset) { mix(StepTable::digest(event, offset)); }
  void mix(uint64_t digest) { hash_ = hash_ * StepTable::kHashFactor + digest; }

  uint64_t capacity_, plan_capacity_, addresses_;
  bool record_;
  bool sparse_ = false;
  uint32_t streams_;
  Region region_;
  StreamOrder order_;
  CoolingSlots cooling_;
  NodeMemory nodes_;
  HeldSlots held_{nodes_.get()};
  std::unordered_map<uint64_t, uint64_t> last_offset_;  // last offsets of stable keys
  ByteHistory given_back_;

  KnownSteps known_;
  bool following_ = false;  // every event of this step was as planned
  // the known step that this step has followed so far, or followed until it deviated
  size_t current_ = 0;
  size_t next_ = 0;       // the plan's event that is expected next, while following
  uint32_t reached_ = 0;  // in the plan, by this step's takes, while not following
  uint64_t most_extent_ = 0;
  size_t most_events_ = 0;  // most events of a known step
  // positions of this step's events while following it; later positions of early takes of tables
  std::vector<uint64_t> positions_;
  // between the streams, at the last step boundary
  std::vector<uint64_t> differences_;
  // they were the same at the one before, and no wait was added
  bool as_before_ = false;
  // the active one; while it is not empty, what lies above is as it was
  StepTable table_;
  // tables of the known steps; the active step has none
  std::vector<StepTable> tables_;
  // in which the steps of all tables begin and end
  std::vector<uint64_t> table_state_;
  // the step before went by the active table, and is not noted yet
  bool table_before_ = false;
  // takes of each key in this step, when not following
  std::unordered_map<uint64_t, uint32_t> occurrence_;
  // events of this step while it is recorded and not followed
  std::vector<Event> events_;

  uint64_t step_events_ = 0;                           // since the last step boundary
  uint64_t added_waits_ = 0, added_waits_before_ = 0;  // before: at the last step boundary
  uint64_t live_ = 0, peak_ = 0, hits_ = 0, misses_ = 0, hash_ = 0;
};

}  // namespace fsccl
