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
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "allocators/pool/byte_history.h"
#include "allocators/pool/region.h"
#include "allocators/pool/step_schedule.h"
#include "allocators/pool/step_table.h"
#include "base/status.h"

namespace fsccl {

struct SlotGrant {
  uint64_t offset = 0;
  uint64_t free_since = 0;  // history position at which the last previous user of any of these bytes gave them back (0: never used)
  bool moved = false;       // a stable key whose previous occurrence had another offset
};

class CollectiveRegion {
 public:
  using Event = StepEvent;
  static constexpr uint64_t kAlignment = 4096;            // of every offset; sizes are rounded up to it
  static constexpr size_t kMostEvents = size_t{1} << 18;  // of a step that is recorded; a longer one is not planned

  CollectiveRegion(uint64_t capacity, bool record);
  CollectiveRegion(const CollectiveRegion&) = default;
  CollectiveRegion& operator=(const CollectiveRegion&) = default;

  // `key`: who asks (unit and role), stable over steps; a key holds at most one slot. `stable`: one offset in every occurrence
  // (parameters). `position`: the event's place in the pool's history, above 0, given by the caller (one counter for all regions of
  // a pool).
  Result<SlotGrant> take(uint64_t key, uint64_t bytes, bool stable, uint64_t position);
  Status give_back(uint64_t key, uint64_t position);
  bool holds(uint64_t key) const;  // by search

  // A declared schedule, between steps: a new step begins. Slots that are held now are taken as kept across steps; an event that
  // takes one of them again says nothing.
  Status declare(const std::vector<Event>& events);
  void end_step();  // step boundary

  uint64_t extent() const;  // bytes from 0 that must exist: max over plan and use
  uint64_t live() const { return live_; }
  uint64_t peak() const { return peak_; }
  uint64_t plan_bytes() const { return plan_ ? plan_->bytes : 0; }
  uint64_t plan_bound() const { return plan_ ? plan_->bound : 0; }
  uint64_t hits() const { return hits_; }            // takes served from the plan
  uint64_t misses() const { return misses_; }        // takes served beside it (none while there is no plan)
  bool by_table() const { return !table_.empty(); }  // the step is served from the table so far
  uint64_t hash() const { return hash_; }            // of the history

 private:
  StepTable::Row* expected(const Event& event);
  void leave_table();
  void mix_event(const Event& event, uint64_t offset);
  std::optional<uint64_t> place(const Event& event);
  std::optional<uint64_t> place_beside_plan(const Event& event);
  std::optional<uint64_t> place_off_stable_ranges(uint64_t bytes);
  bool on_plan(const Event& event) const;
  void deviate();
  void record(const Event& event);
  bool adopt(StepSchedule schedule);
  void mix(uint64_t value);

  uint64_t capacity_;
  bool record_;
  Region region_;
  NodeMemory nodes_;
  HeldSlots held_{nodes_.get()};
  std::unordered_map<uint64_t, uint64_t> last_offset_;  // of stable keys
  ByteHistory given_back_;

  std::optional<StepSchedule> plan_;
  bool following_ = false;                             // every event of this step was as planned
  size_t next_ = 0;                                    // the plan's event that is expected next, while following
  int steps_followed_ = 0;                             // to their end, without a break
  std::vector<uint64_t> given_back_at_;                // positions of this step's events, while following
  StepTable table_;                                    // while it is not empty, what lies above is as it was when it was made
  std::unordered_map<uint64_t, uint32_t> occurrence_;  // takes of each key in this step, when not following
  std::vector<Event> events_;                          // of this step, when not following and recording
  std::vector<Event> previous_;                        // of the step before, if it deviated

  uint64_t step_events_ = 0;  // since the last step boundary
  uint64_t live_ = 0, peak_ = 0, hits_ = 0, misses_ = 0, hash_ = 0;
};

}  // namespace fsccl
