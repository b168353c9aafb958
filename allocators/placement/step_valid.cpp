#include "allocators/placement/step_valid.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

namespace fsccl {
namespace {

// The pieces of work that a piece of work waits for, itself included, a bit each.
using Ancestors = std::vector<bool>;

struct Life {
  uint64_t key, begin, end;
  size_t taken_at, given_at;  // events, counted over two steps
  std::vector<size_t> work;   // the pieces of work that touch it
  bool overlaps(const Life& other) const { return begin < other.end && other.begin < end; }
};

class Proof {
 public:
  Proof(const StepSchedule& first, const StepSchedule& second, const HeldSlots& held) {
    for (const auto& [key, slot] : held)
      open_.emplace(key, begin_life(key, slot.offset, slot.bytes, 0));
    size_t at = 0;
    for (const StepSchedule* step : {&first, &second})
      for (size_t i = 0; i < step->events.size(); ++i)
        follow(at++, step->events[i], step->offset[i]);
  }

  std::string problem() const {
    for (size_t a = 0; a < lives_.size(); ++a)
      for (size_t b = 0; b < lives_.size(); ++b)
        if (a != b && lives_[a].overlaps(lives_[b])) {
          const std::string text = of_pair(lives_[a], lives_[b]);
          if (!text.empty()) return text;
        }
    return {};
  }

 private:
  size_t begin_life(uint64_t key, uint64_t offset, uint64_t bytes, size_t at) {
    lives_.push_back({key, offset, offset + bytes, at, SIZE_MAX, {}});
    return lives_.size() - 1;
  }

  void follow(size_t at, const StepEvent& event, uint64_t offset) {
    const auto life = open_.find(event.key);
    switch (event.op) {
      case StepOp::kTake:
        if (life != open_.end()) return;  // kept
        open_.emplace(event.key, begin_life(event.key, offset, event.bytes, at));
        lives_.back().work.push_back(add_work(event.stream));
        return;
      case StepOp::kUse:
        if (life != open_.end()) lives_[life->second].work.push_back(add_work(event.stream));
        return;
      case StepOp::kGiveBack:
        if (life == open_.end()) return;
        lives_[life->second].given_at = at;
        open_.erase(life);
        return;
      case StepOp::kRecord:
        recorded_[event.key] = streams_[event.stream];
        return;
      case StepOp::kWait:
        merge(streams_[event.stream], recorded_[event.key]);
        return;
    }
  }

  static void merge(Ancestors& into, const Ancestors& from) {
    if (into.size() < from.size()) into.resize(from.size(), false);
    for (size_t i = 0; i < from.size(); ++i)
      if (from[i]) into[i] = true;
  }

  size_t add_work(uint32_t stream) {
    const size_t work = ancestors_.size();
    Ancestors& before = streams_[stream];
    before.resize(work + 1, false);
    before[work] = true;
    ancestors_.push_back(before);
    return work;
  }

  std::string of_pair(const Life& a, const Life& b) const {
    if (a.given_at > b.taken_at) {
      if (b.given_at <= a.taken_at) return {};
      return fmt::format("slots {:#x} and {:#x} are there at once, at event {}, and share bytes",
                         a.key, b.key, b.taken_at);
    }
    if (a.key == b.key) return {};
    for (const size_t later : b.work)
      for (const size_t earlier : a.work)
        if (earlier >= ancestors_[later].size() || !ancestors_[later][earlier])
          return fmt::format(
              "slot {:#x}, taken at event {}, has bytes that slot {:#x} had until event {}, and "
              "nothing orders its work",
              b.key, b.taken_at, a.key, a.given_at);
    return {};
  }

  std::vector<Life> lives_;
  std::map<uint64_t, size_t> open_;
  std::vector<Ancestors> ancestors_;
  std::map<uint32_t, Ancestors> streams_;
  std::map<uint64_t, Ancestors> recorded_;
};

// Checks each take by itself. `stable` collects the offsets of stable keys over all steps.
std::string takes_problem(const StepSchedule& schedule, uint64_t alignment,
                          std::map<uint64_t, uint64_t>& stable) {
  for (size_t i = 0; i < schedule.events.size(); ++i) {
    const StepEvent& event = schedule.events[i];
    if (!event.takes()) continue;
    const uint64_t offset = schedule.offset[i];
    if (offset % alignment != 0)
      return fmt::format("slot {:#x} lies at {}, which is not aligned to {}", event.key, offset,
                         alignment);
    if (offset > schedule.bytes || event.bytes > schedule.bytes - offset)
      return fmt::format("slot {:#x} lies at {} and ends beyond the extent of {}", event.key,
                         offset, schedule.bytes);
    if (event.stable && stable.emplace(event.key, offset).first->second != offset)
      return fmt::format("stable slot {:#x} lies at {} and at {}", event.key, stable.at(event.key),
                         offset);
  }
  return {};
}

std::string parting_problem(const StepSchedule& a, const StepSchedule& b) {
  for (size_t i = 0; i < std::min(a.events.size(), b.events.size()) && a.events[i] == b.events[i];
       ++i)
    if (a.events[i].takes() && a.offset[i] != b.offset[i])
      return fmt::format(
          "two steps are alike up to event {}, but there slot {:#x} lies at {} or at {}", i,
          a.events[i].key, a.offset[i], b.offset[i]);
  return {};
}

}  // namespace

std::string step_problem(const StepSchedule& schedule, const HeldSlots& held, uint64_t alignment) {
  std::map<uint64_t, uint64_t> stable;
  std::string text = takes_problem(schedule, alignment, stable);
  return text.empty() ? Proof(schedule, schedule, held).problem() : text;
}

std::string steps_problem(const JointPlan& plan, const HeldSlots& held, uint64_t alignment) {
  std::map<uint64_t, uint64_t> stable;
  for (const StepSchedule& a : plan.steps) {
    std::string text = takes_problem(a, alignment, stable);
    for (const StepSchedule& b : plan.steps) {
      if (text.empty()) text = parting_problem(a, b);
      if (text.empty()) text = Proof(a, b, held).problem();
    }
    if (!text.empty()) return text;
  }
  return {};
}

}  // namespace fsccl
