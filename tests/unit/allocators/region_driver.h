// Feeds events to a collective region, and checks each answer.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "allocators/placement/collective_region.h"
#include "step_events.h"

namespace fsccl {

inline constexpr uint64_t kPage = CollectiveRegion::kAlignment;
inline constexpr uint64_t kCapacity = 4096 * kPage;

// Feeds events to a region and checks each answer against a model that remembers, page by page, who
// holds it and when it was last given back.
class Driver {
 public:
  explicit Driver(bool record, uint64_t capacity = kCapacity)
      : region(capacity, record),
        holder_(capacity / kPage, kNobody),
        given_back_(capacity / kPage, 0) {}

  void run(const std::vector<StepEvent>& events) {
    for (const StepEvent& event : events) apply(event);
  }
  void step(const std::vector<StepEvent>& events) {
    run(events);
    region.end_step();
  }
  void apply(const StepEvent& event) {
    ++position_;
    event.takes() ? take(event) : give_back(event);
  }
  // Runs a step and returns the offsets of its takes, in order.
  std::vector<uint64_t> offsets_of(const std::vector<StepEvent>& events) {
    offsets.clear();
    step(events);
    return offsets;
  }

  CollectiveRegion region;
  std::vector<uint64_t> offsets;
  std::map<uint64_t, std::set<uint64_t>> offsets_of_key;
  uint64_t moves = 0;
  bool refused = false;

 private:
  static constexpr uint64_t kNobody = UINT64_MAX;

  void take(const StepEvent& event) {
    Result<SlotGrant> grant = region.take(event.key, event.bytes, event.stable, position_);
    refused = !grant.ok();
    if (refused) return;
    const uint64_t first = grant.value().offset / kPage, pages = (event.bytes + kPage - 1) / kPage;
    ASSERT_EQ(grant.value().offset % kPage, 0U);
    ASSERT_LE(first + pages, holder_.size());
    uint64_t release_position = 0;
    for (uint64_t page = first; page < first + pages; ++page) {
      ASSERT_EQ(holder_[page], kNobody) << "page " << page << " is granted twice";
      holder_[page] = event.key;
      release_position = std::max(release_position, given_back_[page]);
    }
    ASSERT_EQ(grant.value().release_position, release_position);
    ASSERT_TRUE(region.holds(event.key));
    ASSERT_GE(region.extent(), grant.value().offset + pages * kPage);
    offsets.push_back(grant.value().offset);
    if (event.stable) offsets_of_key[event.key].insert(grant.value().offset);
    moves += grant.value().moved;
  }
  void give_back(const StepEvent& event) {
    const Status status = region.give_back(event.key, position_);
    ASSERT_TRUE(status.ok()) << status.text();
    ASSERT_FALSE(region.holds(event.key));
    for (uint64_t page = 0; page < holder_.size(); ++page) {
      if (holder_[page] != event.key) continue;
      holder_[page] = kNobody;
      given_back_[page] = position_;
    }
  }

  uint64_t position_ = 0;
  std::vector<uint64_t> holder_, given_back_;
};

inline uint64_t takes_in(const std::vector<StepEvent>& events) {
  uint64_t takes = 0;
  for (const StepEvent& event : events) takes += event.takes();
  return takes;
}

inline std::vector<StepEvent> model_step(int prefetch = 1) {
  return step_events(
      {.unit_bytes = transformer(40 * kPage, 17 * kPage, 12, 41 * kPage), .prefetch = prefetch});
}
inline StepEvent take_event(uint64_t key, uint64_t pages, bool stable = true) {
  return {.op = StepOp::kTake, .stable = stable, .key = key, .bytes = pages * kPage};
}
inline StepEvent give_event(uint64_t key) { return {.op = StepOp::kGiveBack, .key = key}; }

}  // namespace fsccl
