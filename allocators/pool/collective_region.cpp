#include "allocators/pool/collective_region.h"

#include <algorithm>
#include <utility>

namespace fsccl {
namespace {

constexpr uint64_t kEndOfStep = 0x656e64;  // what a step boundary adds to the hash

bool round_up(uint64_t bytes, uint64_t* result) {
  constexpr uint64_t kMask = CollectiveRegion::kAlignment - 1;
  if (bytes > UINT64_MAX - kMask) return false;
  *result = std::max((bytes + kMask) & ~kMask, CollectiveRegion::kAlignment);
  return true;
}

}  // namespace

CollectiveRegion::CollectiveRegion(uint64_t capacity, bool record) : capacity_(capacity), record_(record), region_(capacity) {}

Result<SlotGrant> CollectiveRegion::take(uint64_t key, uint64_t bytes, bool stable, uint64_t position) {
  Event event{.take = true, .key = key, .bytes = 0, .stable = stable};
  const bool fits = round_up(bytes, &event.bytes);
  if (const StepTable::Row* row = expected(event)) [[likely]] {
    ++step_events_;
    ++hits_;
    live_ += event.bytes;
    mix_event(event, row->offset);
    return SlotGrant{.offset = row->offset, .free_since = table_[row->freed_by].position, .moved = false};
  }
  if (held_.contains(key))
    return fail(FSCCL_ERR_INVALID_STATE, "pool: slot {:#x} is taken at event {}, but it is held already; give it back first", key,
                position);
  if (!fits) return fail(FSCCL_ERR_INVALID_ARGUMENT, "pool: a slot of {} bytes is too large", bytes);
  const std::optional<uint64_t> offset = place(event);
  if (!offset) {
    return fail(FSCCL_ERR_OUT_OF_MEMORY,
                "pool: a slot of {} bytes does not fit: {} of {} bytes are in use by {} slots, in pieces up to {} (plan: {} "
                "bytes); give units back earlier "
                "or raise the pool's limit (FSCCL_POOL_LIMIT)",
                event.bytes, live_, capacity_, held_.size(), region_.top(), plan_bytes());
  }
  record(event);
  ++step_events_;
  held_.emplace(key, HeldSlot{.offset = *offset, .bytes = event.bytes, .stable = stable});
  live_ += event.bytes;
  peak_ = std::max(peak_, live_);
  SlotGrant grant{.offset = *offset, .free_since = given_back_.latest(*offset, *offset + event.bytes), .moved = false};
  if (stable) {
    const auto [last, is_first] = last_offset_.try_emplace(key, *offset);
    grant.moved = !is_first && last->second != *offset;
    last->second = *offset;
  }
  mix_event(event, *offset);
  return grant;
}

Status CollectiveRegion::give_back(uint64_t key, uint64_t position) {
  if (StepTable::Row* row = expected({.take = false, .key = key})) [[likely]] {
    ++step_events_;
    live_ -= row->event.bytes;
    row->position = position;
    mix_event(row->event, row->offset);
    return success();
  }
  const auto slot = held_.find(key);
  if (slot == held_.end())
    return fail(FSCCL_ERR_INVALID_STATE, "pool: slot {:#x} is given back at event {}, but it is not held", key, position);
  Event event{.take = false, .key = key};
  if (on_plan(event)) {
    given_back_at_[next_++] = position;
  } else if (following_) {
    deviate();
  }
  record(event);
  ++step_events_;
  const auto [offset, bytes, stable] = slot->second;
  held_.erase(slot);
  region_.free(offset);
  given_back_.set(offset, offset + bytes, position);
  live_ -= bytes;
  event.bytes = bytes;
  mix_event(event, offset);
  return success();
}

bool CollectiveRegion::holds(uint64_t key) const {
  for (size_t i = table_.empty() ? 0 : next_; i-- > 0;)
    if (table_[i].event.key == key) return table_[i].event.take;
  return held_.contains(key);
}

// The row of this event, which the step goes on from; null, and there is no table any more, when another was expected.
StepTable::Row* CollectiveRegion::expected(const Event& event) {
  if (table_.empty()) return nullptr;
  if (next_ < table_.size()) {
    StepTable::Row& row = table_[next_];
    const bool same = event.take ? row.event == event : !row.event.take && row.event.key == event.key;
    if (same) return ++next_, &row;
  }
  leave_table();
  return nullptr;
}

// Tells the search structures what the last steps did: of the one before, what was not done again in this one; of this one, all.
void CollectiveRegion::leave_table() {
  const auto give_back = [&](const StepTable::Row& row) {
    given_back_.set(row.offset, row.offset + row.event.bytes, row.position);
  };
  for (size_t i = next_; i < table_.size(); ++i)
    if (!table_[i].event.take) give_back(table_[i]);
  for (size_t i = 0; i < next_; ++i) {
    const StepTable::Row& row = table_[i];
    if (row.event.take) {
      region_.take(row.offset, row.event.bytes);
      held_.emplace(row.event.key, HeldSlot{.offset = row.offset, .bytes = row.event.bytes, .stable = row.event.stable});
      continue;
    }
    held_.erase(row.event.key);
    region_.free(row.offset);
    give_back(row);
  }
  table_.clear();
  steps_followed_ = 0;
}

std::optional<uint64_t> CollectiveRegion::place(const Event& event) {
  if (on_plan(event) && region_.take(plan_->offset[next_], event.bytes)) {
    ++hits_;
    return plan_->offset[next_++];
  }
  if (following_) deviate();
  if (plan_) return place_beside_plan(event);
  const auto last = last_offset_.find(event.key);
  if (event.stable && last != last_offset_.end() && region_.take(last->second, event.bytes)) return last->second;
  return region_.alloc(event.bytes, kAlignment);
}

// A request of a deviating step. It stays near the plan: what the plan has for the same occurrence of the key, if that is free;
// else a place that is off the offsets of stable keys, which would lose theirs otherwise; else any.
std::optional<uint64_t> CollectiveRegion::place_beside_plan(const Event& event) {
  std::optional<uint64_t> planned;
  const auto takes = plan_->takes.find(event.key);
  const uint32_t nth = occurrence_[event.key];
  if (takes != plan_->takes.end() && nth < takes->second.size()) {
    const uint32_t at = takes->second[nth];
    if (plan_->events[at] == event) planned = plan_->offset[at];
  }
  std::optional<uint64_t> last;
  if (event.stable && last_offset_.contains(event.key)) last = last_offset_.at(event.key);
  // Within a step a stable key stays where it is, even if that is not where the plan has it.
  std::optional<uint64_t> first = planned, second = last;
  if (nth > 0 && last) std::swap(first, second);
  std::optional<uint64_t> offset;
  for (const std::optional<uint64_t>& wanted : {first, second}) {
    if (!offset && wanted && region_.take(*wanted, event.bytes)) offset = wanted;
  }
  if (!offset) offset = place_off_stable_ranges(event.bytes);
  if (!offset) offset = region_.alloc(event.bytes, kAlignment);
  if (!offset) return std::nullopt;
  ++(planned == offset ? hits_ : misses_);
  return offset;
}

// Best fit among what is neither in use nor in the plan's ranges of stable keys.
std::optional<uint64_t> CollectiveRegion::place_off_stable_ranges(uint64_t bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> busy = plan_->stable_ranges;
  for (const auto& [offset, block] : region_.used()) busy.emplace_back(offset, offset + block);
  busy.emplace_back(capacity_, capacity_);
  std::sort(busy.begin(), busy.end());
  uint64_t end = 0, best_gap = UINT64_MAX;
  std::optional<uint64_t> best;
  for (const auto& [from, to] : busy) {
    if (from > end && from - end >= bytes && from - end < best_gap) {
      best = end;
      best_gap = from - end;
    }
    end = std::max(end, to);
  }
  if (best && !region_.take(*best, bytes)) return std::nullopt;
  return best;
}

bool CollectiveRegion::on_plan(const Event& event) const {
  return following_ && next_ < plan_->events.size() && plan_->events[next_] == event;
}

// From here on the step is not the planned one. What it did so far was.
void CollectiveRegion::deviate() {
  following_ = false;
  steps_followed_ = 0;
  events_.clear();
  for (size_t i = 0; i < next_; ++i) record(plan_->events[i]);
}

// Notes an event of a step that is not the planned one.
void CollectiveRegion::record(const Event& event) {
  if (following_) return;
  if (event.take && plan_) ++occurrence_[event.key];
  if (record_ && events_.size() <= kMostEvents) events_.push_back(event);
}

Status CollectiveRegion::declare(const std::vector<Event>& events) {
  if (!table_.empty()) leave_table();
  std::vector<Event> rounded;
  std::unordered_map<uint64_t, bool> taken;  // by the schedule itself
  for (size_t i = 0; i < events.size(); ++i) {
    Event event{.take = events[i].take, .key = events[i].key};
    const auto state = taken.find(event.key);
    const bool known = state != taken.end();
    if (known ? state->second == event.take : !event.take && !holds(event.key)) {
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "pool: event {} of the schedule {} slot {:#x}, which is {} at that point", i,
                  event.take ? "takes" : "gives back", event.key, event.take ? "held already" : "not held");
    }
    if (event.take) {
      event.stable = events[i].stable;
      if (!round_up(events[i].bytes, &event.bytes))
        return fail(FSCCL_ERR_INVALID_ARGUMENT, "pool: event {} takes {} bytes, which is too much", i, events[i].bytes);
    }
    taken[event.key] = event.take;
    rounded.push_back(event);
  }
  StepSchedule schedule = plan_step(rounded, held_, kAlignment);
  const uint64_t bytes = schedule.bytes;
  if (!adopt(std::move(schedule))) {
    return fail(
        FSCCL_ERR_OUT_OF_MEMORY,
        "pool: the schedule needs {} bytes, the pool's limit leaves {}; raise it (FSCCL_POOL_LIMIT) or let less be live at once",
        bytes, capacity_);
  }
  events_.clear();
  previous_.clear();
  occurrence_.clear();
  step_events_ = 0;
  return success();
}

void CollectiveRegion::end_step() {
  mix(kEndOfStep);
  if (std::exchange(step_events_, 0) == 0) return;  // a step without events says nothing about the next ones
  if (plan_ && following_ && next_ == plan_->events.size()) {
    previous_.clear();
    next_ = 0;
    if (!table_.empty()) return;
    // A slot that this step took and kept is not taken again in the next one.
    if (!plan_->periodic)
      adopt(plan_step(std::vector<Event>(plan_->events), held_, kAlignment));
    else if (++steps_followed_ == 2)  // the second began as it ended, so that all that come are like it
      table_.build(*plan_, held_, given_back_at_);
    return;
  }
  if (!table_.empty()) leave_table();
  if (following_) deviate();  // it ended early
  const bool repeats = events_ == previous_;
  if (record_ && events_.size() <= kMostEvents && (plan_ ? repeats : !repeats)) adopt(plan_step(events_, held_, kAlignment));
  previous_ = std::exchange(events_, {});
  if (repeats && plan_) previous_.clear();
  occurrence_.clear();
  following_ = plan_.has_value();
  next_ = 0;
}

// False, and nothing has changed, when the plan is larger than the region.
bool CollectiveRegion::adopt(StepSchedule schedule) {
  if (schedule.bytes > capacity_) return false;
  plan_ = std::move(schedule);
  given_back_at_.assign(plan_->events.size(), 0);
  following_ = true;
  steps_followed_ = 0;
  next_ = 0;
  return true;
}

uint64_t CollectiveRegion::extent() const { return std::max(plan_bytes(), region_.top()); }

void CollectiveRegion::mix_event(const Event& event, uint64_t offset) {
  mix(event.key ^ offset * 0xd6e8feb86659fd93U);
  mix(event.bytes | (event.take ? 1 : 0));  // bytes are aligned
}

void CollectiveRegion::mix(uint64_t value) {
  // The finalizer of splitmix64 over what came before and the value.
  uint64_t x = hash_ * 0x9e3779b97f4a7c15U + value + 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  hash_ = x ^ (x >> 31);
}

}  // namespace fsccl
