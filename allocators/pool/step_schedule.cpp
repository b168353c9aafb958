#include "allocators/pool/step_schedule.h"

#include <algorithm>
#include <map>
#include <utility>

namespace fsccl {
namespace {

constexpr size_t kMostHomes = 256;  // of a size; each is looked at for each gap when a step deviates

// What a step that begins with these slots held can do of `events`. *periodic: whether it ends with the same ones held.
std::vector<StepEvent> without_contradictions(const std::vector<StepEvent>& events, const HeldSlots& held, bool* periodic) {
  std::unordered_map<uint64_t, bool> is_held;
  for (const auto& [key, slot] : held) is_held[key] = true;
  std::vector<StepEvent> result;
  for (const StepEvent& event : events) {
    if (event.moves_slot()) {
      bool& now = is_held[event.key];
      if (now == event.takes()) continue;
      now = event.takes();
    } else if (event.op == StepOp::kUse && !is_held[event.key]) {
      continue;
    }
    result.push_back(event);
  }
  *periodic = true;
  for (const auto& [key, held_at_end] : is_held) *periodic &= held_at_end == held.contains(key);
  return result;
}

// The requests of a step, and for each the event that takes it (-1: held from the beginning and never taken again).
struct Requests {
  std::vector<SlotRequest> list;
  std::vector<int64_t> event;
};

// Keys become small numbers for the planner; only stable ones share an offset.
class RequestBuilder {
 public:
  RequestBuilder(const std::vector<StepEvent>& events, const HeldSlots& held) : events_(events) {
    for (const auto& [key, slot] : held)
      open_.emplace(key, Open{.first = -1, .bytes = slot.bytes, .stable = slot.stable, .pinned = slot.offset});
  }

  Requests build() {
    for (size_t i = 0; i < events_.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i);
      const StepEvent& event = events_[i];
      if (!event.moves_slot()) continue;
      if (event.takes()) {
        open_.emplace(event.key, Open{.first = at, .bytes = event.bytes, .stable = event.stable, .pinned = SlotRequest::kAnywhere});
        continue;
      }
      const auto slot = open_.find(event.key);
      if (slot->second.first < 0) {
        wrapped_.emplace(event.key, Wrapped{at, slot->second});  // what it was taken by is still to come, if it is at all
      } else {
        add(event.key, slot->second, slot->second.first, at);
      }
      open_.erase(slot);
    }
    finish();
    set_orders();
    return std::move(requests_);
  }

 private:
  struct Open {
    int64_t first;  // -1: before the step
    uint64_t bytes;
    bool stable;
    uint64_t pinned;
  };
  struct Wrapped {
    int64_t last;
    Open slot;
  };

  // Held at the end of the step: into the next one, or for ever. Given back but not taken again: only this once.
  void finish() {
    for (auto& [key, slot] : open_) {
      const auto wrapped = wrapped_.find(key);
      if (wrapped == wrapped_.end() || slot.first < 0) {
        add(key, slot, std::max<int64_t>(slot.first, 0), SlotRequest::kForever);
        continue;
      }
      // The same slot seen from both sides of the boundary: it stays where it is.
      slot.pinned = wrapped->second.slot.pinned;
      slot.bytes = std::max(slot.bytes, wrapped->second.slot.bytes);
      add(key, slot, slot.first, wrapped->second.last);
      wrapped_.erase(wrapped);
    }
    for (const auto& [key, wrapped] : wrapped_) {
      add(key, wrapped.slot, 0, wrapped.last);
      requests_.event.back() = -1;
    }
  }

  void add(uint64_t key, const Open& slot, int64_t first, int64_t last) {
    const int64_t shared = static_cast<int64_t>(number_.emplace(key, number_.size()).first->second);
    requests_.list.push_back(
        {.bytes = slot.bytes, .first = first, .last = last, .key = slot.stable ? shared : -1, .pinned = slot.pinned});
    requests_.event.push_back(slot.first);
  }

  // Follows the streams through the step and the next one: what each request waits for and leaves behind.
  void set_orders() {
    std::vector<SlotRequest*> taken_by(events_.size(), nullptr);
    for (size_t i = 0; i < requests_.list.size(); ++i) {
      if (requests_.event[i] >= 0) taken_by[static_cast<size_t>(requests_.event[i])] = &requests_.list[i];
    }
    StreamOrder order;
    struct User {
      SlotRequest* request;
      int round;  // of its take
    };
    std::map<uint64_t, User> users;
    for (const int round : {0, 1}) {
      for (size_t i = 0; i < events_.size(); ++i) {
        const StepEvent& event = events_[i];
        if (event.op == StepOp::kRecord) order.record(event.key, event.stream);
        if (event.op == StepOp::kWait) order.wait(event.key, event.stream);
        if (event.op == StepOp::kGiveBack) users.erase(event.key);
        if (event.takes()) users[event.key] = {taken_by[i], round};
        const bool touches = event.takes() || event.op == StepOp::kUse;
        const auto user = touches ? users.find(event.key) : users.end();
        if (user == users.end() || !user->second.request) continue;
        SlotOrder& of = user->second.request->order;
        StreamClock& ready = user->second.round == 0 ? of.ready : of.ready_next;
        const StreamClock& known = order.known(event.stream);
        for (size_t s = 0; s < kMostStreams; ++s) ready[s] = event.takes() ? known[s] : std::min(ready[s], known[s]);
        const uint64_t work = order.work(event.stream);
        if (user->second.round == 0) of.done[event.stream] = work;
      }
    }
  }

  const std::vector<StepEvent>& events_;
  std::map<uint64_t, Open> open_;  // ordered: the order of requests must be the same everywhere
  std::map<uint64_t, Wrapped> wrapped_;
  std::map<uint64_t, size_t> number_;
  Requests requests_;
};

}  // namespace

StepSchedule plan_step(const std::vector<StepEvent>& events, const HeldSlots& held, uint64_t alignment, int64_t most_compared) {
  StepSchedule schedule;
  schedule.events = without_contradictions(events, held, &schedule.periodic);
  const Requests requests = RequestBuilder(schedule.events, held).build();
  const SlotPlan plan = plan_slots(requests.list, static_cast<int64_t>(schedule.events.size()), alignment, most_compared);
  schedule.bytes = plan.bytes;
  schedule.bound = plan.bound;
  schedule.clique_bound = plan.clique_bound;
  schedule.offset.assign(schedule.events.size(), 0);
  for (size_t i = 0; i < requests.list.size(); ++i) {
    if (requests.event[i] >= 0) schedule.offset[static_cast<size_t>(requests.event[i])] = plan.offset[i];
  }
  const auto count = static_cast<uint32_t>(schedule.events.size());
  schedule.until.assign(count, count);
  for (uint32_t i = 0; i < count; ++i) {
    const StepEvent& event = schedule.events[i];
    if (event.takes()) {
      schedule.takes[event.key].push_back(i);
      schedule.homes[event.bytes].push_back(schedule.offset[i]);
    }
    if (event.op != StepOp::kGiveBack) continue;
    const auto takes = schedule.takes.find(event.key);
    if (takes != schedule.takes.end()) schedule.until[takes->second.back()] = i;
  }
  for (auto& [bytes, offsets] : schedule.homes) {
    std::sort(offsets.begin(), offsets.end());
    offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
    offsets.resize(std::min(offsets.size(), kMostHomes));
  }
  return schedule;
}

}  // namespace fsccl
