// Places the slots of units at offsets that are the same on every rank. They are the same because
// they are a pure function of the history of collective memory events (take and give back, in the
// order of the program), and do not depend on what happens to complete first. A pool has one region
// for the slots that the ranks of a host share, and one for the slots of each rank (gradients,
// private parameters).
//
// A region records the events of the first step and plans them (planner.h). From then on it looks
// up the answer to each event in the plan, by the event's number in the step. A step that repeats
// exactly is served from a table (step_table.h). A request that the plan does not have is placed
// beside the plan in free bytes, and counted as a miss; the region then learns the whole step. It
// knows several steps at once, which are planned together (known_steps.h), and follows a known step
// whose first events are those of the present step so far. Positions in the history are numbers
// that the caller gives, which grow with the events. The hash of the whole history goes into the
// fingerprints of operations.
//
// A stable key (of a unit's parameters) has one offset in all its occurrences in all known steps:
// from the first step on if that step was declared, and else from the second one on. In a step that
// is recorded, a stable key gets its last offset if that is free. In a step that deviates, it gets
// the planned offset or its last one if one of them is free; the first take of the step tries the
// planned one first. If the key gets another offset than last time, the grant says `moved`. (To
// promise more would take memory for the whole model in the first step.) A new plan moves slots
// only at a step boundary, and never a slot that is held across it.
//
// If several streams use slots, the caller reports which stream uses a slot (use()), and what
// orders the streams (record(), wait()). These events are part of the step. Where there is a
// choice, a slot gets bytes whose earlier uses are already ordered before it, so that its stream
// has to wait for no other one. In a step that follows its plan this is always so, unless the step
// before went another way.
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
  // The position in the history at which any of these bytes were last given back. 0: they were
  // never used.
  uint64_t release_position = 0;
  bool moved = false;  // the previous occurrence of this stable key had another offset
  // The streams, a bit each, that the slot's stream must be made to wait for before it uses the
  // slot, because no event orders it behind their work on these bytes.
  uint32_t waits = 0;
};

class CollectiveRegion {
 public:
  using Event = StepEvent;
  // The alignment of every offset. Sizes are rounded up to it.
  static constexpr uint64_t kAlignment = StepTable::kAlignment;
  // The most events of a step that is planned.
  static constexpr size_t kMostEvents = size_t{1} << 18;

  CollectiveRegion(uint64_t capacity, bool record, uint32_t streams = 1);
  CollectiveRegion(const CollectiveRegion&) = default;
  CollectiveRegion& operator=(const CollectiveRegion&) = default;

  // `key` stands for a unit and a role, and means the same in all steps. A key holds at most one
  // slot. `stable` asks for one offset in all occurrences of the key (parameters). `position` is
  // the event's position in the history, above 0; a pool has one counter for all its regions.
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
  // These do the same if the step goes by a table and this event is the table's next one. Otherwise
  // they do nothing and return null.
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
  // use() says that work that touches the slot is put on the stream; take() says so for its own
  // stream. For record() and wait(), an event between streams is a number that means the same in
  // every step, such as one for each unit and purpose. Recording it again replaces it.
  Status use(uint64_t key, uint32_t stream) { return order(StepOp::kUse, key, stream); }
  Status record(uint64_t event, uint32_t stream) { return order(StepOp::kRecord, event, stream); }
  Status wait(uint64_t event, uint32_t stream) { return order(StepOp::kWait, event, stream); }
  bool holds(uint64_t key) const;  // looks through the step's events

  // Adds a declared schedule to the known steps, and begins a new step. It is called between steps.
  // The plan assumes that slots that are held now are kept across steps, and ignores an event of
  // the schedule that takes one of them. A schedule without events adds nothing.
  Status declare(const std::vector<Event>& events);
  void end_step();  // step boundary

  // From now on no slot and no plan reaches beyond `bytes`, which must be above everything in use
  // and the same on all ranks.
  void set_capacity(uint64_t bytes) {
    capacity_ = plan_capacity_ = addresses_ = bytes;
    region_.set_capacity(bytes);
  }
  // The same for memory whose free bytes can be given back (backed_bytes.h). At most `bytes` bytes
  // of slots are live at once, but they may lie anywhere in `addresses` bytes. Plans have at most
  // `plan` bytes. The extent becomes the plan's again at every step boundary.
  void set_capacity(uint64_t bytes, uint64_t plan, uint64_t addresses) {
    capacity_ = bytes;
    plan_capacity_ = plan;
    addresses_ = std::max(bytes, addresses);
    sparse_ = true;
    region_.set_capacity(addresses_);
  }
  // Returns how many bytes, from offset 0 on, must exist: the most that the plan needs, or that
  // slots have needed since the plan was made. The extent may fall at a step boundary, because a
  // new plan may need less than the one before, or than the step from which it was made. An owner
  // that then frees memory above the extent says so by give_up().
  uint64_t extent() const { return most_extent_; }
  // Returns how many bytes, from offset 0 on, should exist as a whole: those of the plan, or,
  // without a plan, all that were ever in use.
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
  // Takes that got the offset of the plan.
  uint64_t hits() const { return hits_ + (table_.empty() ? 0 : table_.takes_before(next_)); }
  // Takes that got another offset while there was a plan.
  uint64_t misses() const { return misses_; }
  // Waits of one stream for another that grants have asked for.
  uint64_t added_waits() const { return added_waits_; }
  bool by_table() const { return !table_.empty(); }  // the step has gone by its table so far
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
  // The known step that this step follows, or followed until it deviated.
  size_t current_ = 0;
  size_t next_ = 0;       // while following: the number of the plan's next event
  uint32_t reached_ = 0;  // while not following: the plan's furthest event that a take matched
  uint64_t most_extent_ = 0;
  size_t most_events_ = 0;  // most events of a known step
  // While following: the position of each give-back of this step, by its number. Behind these, for
  // a table, are the positions of its early takes (StepTable::Early).
  std::vector<uint64_t> positions_;
  // The state of the streams and of cooling slots at the last step boundary, in a form that is
  // equal for equal states.
  std::vector<uint64_t> differences_;
  // True if they were the same at the boundary before, and the step in between added no wait.
  bool as_before_ = false;
  // The active table, or an empty one. While a table is active, the search structures are as at a
  // step boundary (by_table.cpp).
  StepTable table_;
  // The tables of the known steps. The place of the active one is empty.
  std::vector<StepTable> tables_;
  // The state in which the steps of all tables begin and end.
  std::vector<uint64_t> table_state_;
  // True if the step before went by the active table, and its give-backs are not in given_back_
  // yet.
  bool table_before_ = false;
  // The number of takes of each key in this step, while it is not followed.
  std::unordered_map<uint64_t, uint32_t> occurrence_;
  // The events of this step, for learning it, while it is not followed.
  std::vector<Event> events_;

  uint64_t step_events_ = 0;                           // events since the last step boundary
  uint64_t added_waits_ = 0, added_waits_before_ = 0;  // in all, now and at the last boundary
  uint64_t live_ = 0, peak_ = 0, hits_ = 0, misses_ = 0, hash_ = 0;
};

}  // namespace fsccl
