#include "allocators/placement/collective_region.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace fsccl {
namespace {

constexpr uint64_t kEndOfStep = 0x656e64;  // a step boundary adds this to the hash

bool aligned_size(uint64_t bytes, uint64_t* result) {
  constexpr uint64_t kMask = CollectiveRegion::kAlignment - 1;
  if (bytes > UINT64_MAX - kMask) return false;
  *result = std::max((bytes + kMask) & ~kMask, CollectiveRegion::kAlignment);
  return true;
}

Status check_stream(uint32_t stream, uint32_t streams) {
  if (stream < streams) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "pool: stream {} is named, but the pool was made for {} (at most {})", stream,
              streams, kMostStreams);
}

}  // namespace

CollectiveRegion::CollectiveRegion(uint64_t capacity, bool record, uint32_t streams)
    : capacity_(capacity),
      plan_capacity_(capacity),
      addresses_(capacity),
      record_(record),
      streams_(std::min(streams, kMostStreams)),
      region_(capacity),
      order_(streams_) {}

Result<SlotGrant> CollectiveRegion::take_off_table(uint64_t key, uint64_t bytes, bool stable,
                                                   uint64_t position, uint32_t stream) {
  if (bytes == 0) return take(key, 1, stable, position, stream);
  Event event{.op = StepOp::kTake, .stable = stable, .stream = stream, .key = key, .bytes = 0};
  const bool fits = aligned_size(bytes, &event.bytes);
  if (fits && goes_by_another_table(event)) return take(key, bytes, stable, position, stream);
  leave_table();
  FSCCL_TRY(check_stream(stream, streams_));
  if (held_.contains(key))
    return fail(FSCCL_ERR_INVALID_STATE,
                "pool: slot {:#x} is taken at event {}, but it is held already; give it back first",
                key, position);
  if (!fits)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "pool: a slot of {} bytes is too large", bytes);
  SlotGrant grant;
  const bool room = live_ <= capacity_ && event.bytes <= capacity_ - live_;
  const std::optional<uint64_t> offset = room ? place(event, &grant.waits) : std::nullopt;
  if (!offset) {
    return fail(FSCCL_ERR_OUT_OF_MEMORY,
                "pool: a slot of {} bytes does not fit: {} of {} bytes are in use by {} slots, in "
                "pieces up to {} (plan: {} "
                "bytes); give units back earlier "
                "or raise the pool's limit (FSCCL_POOL_LIMIT)",
                event.bytes, live_, capacity_, held_.size(), region_.top(), plan_bytes());
  }
  note(event);
  ++step_events_;
  follow(event);
  held_.at(key).offset = *offset;
  live_ += event.bytes;
  peak_ = std::max(peak_, live_);
  most_extent_ = std::max(most_extent_, *offset + event.bytes);
  grant.offset = *offset;
  grant.release_position = given_back_.latest(*offset, *offset + event.bytes);
  if (stable) {
    const auto [last, is_first] = last_offset_.try_emplace(key, *offset);
    grant.moved = !is_first && last->second != *offset;
    last->second = *offset;
  }
  mix(event, *offset);
  return grant;
}

Status CollectiveRegion::give_back_off_table(uint64_t key, uint64_t position) {
  Event event{.op = StepOp::kGiveBack, .key = key};
  if (goes_by_another_table(event)) return give_back(key, position);
  leave_table();
  const auto slot = held_.find(key);
  if (slot == held_.end())
    return fail(FSCCL_ERR_INVALID_STATE,
                "pool: slot {:#x} is given back at event {}, but it is not held", key, position);
  if (on_plan(event)) {
    positions_[next_++] = position;
  } else if (following_) {
    deviate();
  }
  note(event);
  ++step_events_;
  const HeldSlot was = slot->second;
  held_.erase(slot);
  free_bytes(was);
  given_back_.set(was.offset, was.offset + was.bytes, position);
  live_ -= was.bytes;
  event.bytes = was.bytes;
  mix(event, was.offset);
  return success();
}

Status CollectiveRegion::order_off_table(const Event& event) {
  if (goes_by_another_table(event)) return order(event.op, event.key, event.stream);
  leave_table();
  FSCCL_TRY(check_stream(event.stream, streams_));
  if (event.op == StepOp::kUse && !held_.contains(event.key))
    return fail(FSCCL_ERR_INVALID_STATE,
                "pool: slot {:#x} is used on stream {}, but it is not held", event.key,
                event.stream);
  if (on_plan(event)) {
    ++next_;
  } else if (following_) {
    deviate();
  }
  note(event);
  ++step_events_;
  follow(event);
  mix(event, 0);
  return success();
}

std::vector<std::pair<uint64_t, uint64_t>> CollectiveRegion::held_ranges() {
  leave_table();
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [key, slot] : held_) ranges.emplace_back(slot.offset, slot.offset + slot.bytes);
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

// Records the event's effect on the streams and on the holders; placing and freeing bytes happens
// elsewhere.
void CollectiveRegion::follow(const Event& event) {
  if (event.op == StepOp::kRecord) order_.record(event.key, event.stream);
  if (event.op == StepOp::kWait) order_.wait(event.key, event.stream);
  if (event.takes())
    held_.emplace(event.key, HeldSlot{.bytes = event.bytes, .stable = event.stable});
  if (event.takes() || event.op == StepOp::kUse)
    held_.at(event.key).done[event.stream] = order_.work(event.stream);
}

void CollectiveRegion::free_bytes(const HeldSlot& slot) {
  if (covers(order_.known_to_all(), slot.done))
    region_.free(slot.offset);
  else
    cooling_.add(slot.offset, slot.offset + slot.bytes, slot.done);
}

bool CollectiveRegion::holds(uint64_t key) const {
  for (size_t i = table_.empty() ? 0 : next_; i-- > 0;)
    if (table_[i].event.key == key && table_[i].event.moves_slot()) return table_[i].event.takes();
  return held_.contains(key);
}

// Takes exactly these bytes, for the event's stream, if no slot holds any of them. Returns the
// streams that the event's stream must wait for.
std::optional<uint32_t> CollectiveRegion::occupy(const Event& event, uint64_t offset) {
  const uint64_t end = offset + event.bytes;
  bool taken = region_.take(offset, event.bytes);
  if (taken || cooling_.empty()) return taken ? std::optional(0U) : std::nullopt;
  cooling_.open(region_, order_.known(event.stream), offset, end);
  taken = region_.take(offset, event.bytes);
  const StreamClock done =
      cooling_.close(region_, order_.known_to_all(), taken ? offset : 0, taken ? end : 0);
  return taken ? std::optional(order_.wait_for(done, event.stream)) : std::nullopt;
}

std::optional<uint64_t> CollectiveRegion::place(const Event& event, uint32_t* waits) {
  if (on_plan(event)) {
    const uint64_t offset = known_.plan().steps[current_].offset[next_];
    if (const std::optional<uint32_t> waited = occupy(event, offset)) {
      ++next_;
      ++hits_;
      *waits = *waited;
      added_waits_ += static_cast<uint64_t>(std::popcount(*waited));
      return offset;
    }
  }
  if (following_) deviate();
  const bool cooling = !cooling_.empty();
  if (cooling) cooling_.open(region_, order_.known(event.stream), 0, 0);
  const std::optional<uint64_t> offset = place_anywhere(event);
  if (cooling) {
    const uint64_t begin = offset.value_or(0), end = offset ? begin + event.bytes : 0;
    *waits =
        order_.wait_for(cooling_.close(region_, order_.known_to_all(), begin, end), event.stream);
    added_waits_ += static_cast<uint64_t>(std::popcount(*waits));
  }
  return offset;
}

std::optional<uint64_t> CollectiveRegion::place_anywhere(const Event& event) {
  if (!known_.empty()) return place_beside_plan(event);
  const auto last = last_offset_.find(event.key);
  if (event.stable && last != last_offset_.end() && region_.take(last->second, event.bytes))
    return last->second;
  return region_.alloc(event.bytes, kAlignment);
}

// Returns true if this event is the next one of the known step that is followed. If another known
// step that began alike goes on with this event, that one is followed from now on.
bool CollectiveRegion::on_plan(const Event& event) {
  if (!following_) return false;
  const std::vector<Event>& expected = known_.plan().steps[current_].events;
  if (next_ < expected.size() && expected[next_] == event) return true;
  const std::optional<size_t> step = known_.plan().next(current_, next_, event);
  if (step) current_ = *step;
  return step.has_value();
}

// Notes an event of a step that does not follow a plan.
void CollectiveRegion::note(const Event& event) {
  if (following_) return;
  if (event.takes() && !known_.empty()) ++occurrence_[event.key];
  if (record_ && events_.size() <= kMostEvents) events_.push_back(event);
}

Status CollectiveRegion::declare(const std::vector<Event>& events) {
  if (events.size() > kMostEvents)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "pool: the schedule has {} events, at most {} are planned; declare a shorter step",
                events.size(), kMostEvents);
  leave_table();
  std::vector<Event> rounded;
  std::unordered_map<uint64_t, bool> taken;  // key -> whether the schedule holds it
  for (size_t i = 0; i < events.size(); ++i) {
    Event event = events[i];
    FSCCL_TRY(check_stream(event.stream, streams_));
    if (event.moves_slot()) {
      const auto state = taken.find(event.key);
      const bool known = state != taken.end();
      if (known ? state->second == event.takes() : !event.takes() && !holds(event.key)) {
        return fail(FSCCL_ERR_INVALID_ARGUMENT,
                    "pool: event {} of the schedule {} slot {:#x}, which is {} at that point", i,
                    event.takes() ? "takes" : "gives back", event.key,
                    event.takes() ? "held already" : "not held");
      }
      taken[event.key] = event.takes();
    }
    if (event.takes()) {
      if (!aligned_size(events[i].bytes, &event.bytes))
        return fail(FSCCL_ERR_INVALID_ARGUMENT, "pool: event {} takes {} bytes, which is too much",
                    i, events[i].bytes);
    } else {
      event.bytes = 0;
      event.stable = false;
      if (event.op == StepOp::kGiveBack) event.stream = 0;
    }
    rounded.push_back(event);
  }
  if (!rounded.empty()) {
    if (!known_.learn(rounded, held_, kAlignment, plan_capacity_)) {
      return fail(FSCCL_ERR_OUT_OF_MEMORY,
                  "pool: the schedule needs {} bytes, the pool's limit leaves {}; raise it "
                  "(FSCCL_POOL_LIMIT) or let less be live "
                  "at once",
                  plan_step(rounded, held_, kAlignment).bytes, plan_capacity_);
    }
    begin_plan();
  }
  events_.clear();
  occurrence_.clear();
  reached_ = 0;
  step_events_ = 0;
  return success();
}

void CollectiveRegion::end_step() {
  const bool by_table = !table_.empty() && (next_ == 0 || end_table_step());
  if (!by_table) leave_table();
  mix(kEndOfStep);
  if (by_table) return;
  // A step without events tells nothing about the next steps, and changes nothing.
  if (std::exchange(step_events_, 0) == 0) return;
  end_streams_step();
  const std::optional<size_t> ended =
      following_ ? known_.plan().ends(current_, next_) : std::nullopt;
  if (ended) {
    current_ = *ended;
    next_ = 0;
    known_.came(current_);
    // If the step ended with other slots held than it began with, the next step cannot repeat its
    // takes and give-backs. So the known steps are planned again with the slots that are held now.
    if (known_.plan().steps[current_].periodic)
      enter_table();
    else if (known_.plan_again(held_, kAlignment, plan_capacity_))
      begin_plan();
    return;
  }
  if (following_) deviate();  // the step ended before its plan did
  following_ = !known_.empty();
  if (sparse_ && following_) most_extent_ = std::max(plan_bytes(), region_.top());
  next_ = 0;
  const std::vector<Event> events = std::exchange(events_, {});
  if (record_ && events.size() <= kMostEvents && known_.worth_learning(events) &&
      known_.learn(events, held_, kAlignment, plan_capacity_))
    begin_plan();
  occurrence_.clear();
  reached_ = 0;
}

// Notes in as_before_ whether this step has left the streams, and the bytes that work on them may
// still use, in the same state as the step before.
void CollectiveRegion::end_streams_step() {
  const StreamClock known = order_.known_to_all();
  cooling_.open(region_, known, 0, 0);  // frees bytes whose uses are known to be over
  cooling_.close(region_, known, 0, 0);
  cooling_.end_step();
  std::vector<uint64_t> differences;
  order_.append_differences(&differences);
  cooling_.append_differences(order_, &differences);
  as_before_ = differences == differences_ && added_waits_ == added_waits_before_;
  differences_ = std::move(differences);
  added_waits_before_ = added_waits_;
}

// Begins to follow a new plan, expecting its latest step.
void CollectiveRegion::begin_plan() {
  const std::vector<StepSchedule>& steps = known_.plan().steps;
  most_extent_ = std::max(plan_bytes(), region_.top());
  most_events_ = 0;
  for (const StepSchedule& step : steps) most_events_ = std::max(most_events_, step.events.size());
  positions_.assign(most_events_, 0);
  tables_.assign(steps.size(), {});
  table_state_.clear();
  following_ = true;
  current_ = known_.latest();
  next_ = 0;
}

}  // namespace fsccl
