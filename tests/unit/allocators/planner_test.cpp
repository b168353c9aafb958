#include "allocators/pool/planner.h"

#include <gtest/gtest.h>

#include <random>

#include "step_events.h"

namespace fsccl {
namespace {

constexpr uint64_t kAlignment = 64;

SlotPlan plan_and_check(const std::vector<SlotRequest>& requests, int64_t events) {
  const SlotPlan plan = plan_slots(requests, events, kAlignment);
  EXPECT_TRUE(plan_valid(requests, plan, events, kAlignment));
  EXPECT_GE(plan.bytes, plan.bound);
  return plan;
}

SlotPlan plan_of(const StepShape& shape) {
  const std::vector<StepEvent> events = step_events(shape);
  return plan_and_check(requests_of(events), static_cast<int64_t>(events.size()));
}

std::vector<SlotRequest> random_requests(std::mt19937_64& random, int64_t events, size_t count) {
  std::vector<SlotRequest> requests(count);
  for (SlotRequest& request : requests) {
    const uint64_t range = static_cast<uint64_t>(events);
    request.bytes = 1 + random() % 5000;
    request.first = static_cast<int64_t>(random() % range);
    const int64_t length = static_cast<int64_t>(random() % (range / 4 + 1));
    request.last = random() % 20 == 0 ? SlotRequest::kForever : (request.first + length) % events;
    request.key = random() % 3 == 0 ? static_cast<int64_t>(random() % (count / 2 + 1)) : -1;
  }
  return requests;
}

TEST(Planner, NothingNeedsNothing) {
  const SlotPlan plan = plan_slots({}, 0, kAlignment);
  EXPECT_EQ(plan.bytes, 0U);
  EXPECT_EQ(plan.bound, 0U);
  EXPECT_TRUE(plan_valid({}, plan, 0, kAlignment));
}

TEST(Planner, RandomRequestsAreValidAndRepeatable) {
  std::mt19937_64 random(7);
  double worst = 1;
  for (int i = 0; i < 40; ++i) {
    const int64_t events = 2 + static_cast<int64_t>(random() % 80);
    const std::vector<SlotRequest> requests = random_requests(random, events, 1 + random() % 40);
    const SlotPlan plan = plan_and_check(requests, events);
    worst = std::max(worst, static_cast<double>(plan.bytes) / static_cast<double>(plan.bound));
    const SlotPlan again = plan_slots(requests, events, kAlignment);
    ASSERT_EQ(plan.offset, again.offset);
  }
  EXPECT_LT(worst, 1.35);
}

TEST(Planner, UniformStepsMeetTheBound) {
  for (const int prefetch : {0, 1, 2, 3}) {
    for (const int layers : {1, 2, 3, 8, 17, 80}) {
      for (const bool gradients : {false, true}) {
        const SlotPlan plan =
            plan_of({.unit_bytes = transformer(6400, 6400, layers, 6400), .prefetch = prefetch, .gradients = gradients});
        EXPECT_EQ(plan.bytes, plan.bound) << "prefetch " << prefetch << " layers " << layers << " gradients " << gradients;
      }
    }
  }
}

TEST(Planner, TransformersStayNearTheBound) {
  struct Model {
    const char* name;
    std::vector<uint64_t> bytes;
  };
  const Model models[] = {{"1B", transformer(525'336'576, 121'643'008, 16, 525'340'672)},
                          {"8B", transformer(1'050'673'152, 436'224'000, 32, 1'050'681'344)},
                          {"70B", transformer(2'101'346'304, 1'711'308'800, 80, 2'101'362'688)},
                          {"wide layers", transformer(1000 * 64, 1700 * 64, 40, 900 * 64)}};
  for (const Model& model : models) {
    for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const int prefetch = variant / 2;
      const SlotPlan plan = plan_of({.unit_bytes = model.bytes, .prefetch = prefetch, .gradients = variant % 2 == 1});
      const double ratio = static_cast<double>(plan.bytes) / static_cast<double>(plan.bound);
      EXPECT_LE(ratio, 1.01) << model.name << " prefetch " << prefetch << " gradients " << variant % 2;
    }
  }
}

TEST(Planner, BytesAreSharedFromTheEventAfterTheLast) {
  EXPECT_EQ(plan_and_check({{.bytes = 64, .first = 0, .last = 1}, {.bytes = 64, .first = 2, .last = 3}}, 4).bytes, 64U);
  EXPECT_EQ(plan_and_check({{.bytes = 64, .first = 0, .last = 2}, {.bytes = 64, .first = 2, .last = 3}}, 4).bytes, 128U);
}

TEST(Planner, WrappedRequestsMeetBothEndsOfTheStep) {
  const SlotRequest wrapped{.bytes = 64, .first = 3, .last = 0};
  EXPECT_EQ(plan_and_check({wrapped, {.bytes = 64, .first = 0, .last = 1}}, 4).bytes, 128U);
  EXPECT_EQ(plan_and_check({wrapped, {.bytes = 64, .first = 2, .last = 3}}, 4).bytes, 128U);
  EXPECT_EQ(plan_and_check({wrapped, {.bytes = 64, .first = 1, .last = 2}}, 4).bytes, 64U);
  const SlotRequest forever{.bytes = 64, .first = 3, .last = SlotRequest::kForever};
  EXPECT_EQ(plan_and_check({forever, {.bytes = 64, .first = 1, .last = 2}}, 4).bytes, 128U);
}

TEST(Planner, PinnedSlotsStay) {
  const std::vector<SlotRequest> requests = {{.bytes = 640, .first = 0, .last = 3},
                                             {.bytes = 640, .first = 5, .last = 1, .key = 4, .pinned = 1280},
                                             {.bytes = 640, .first = 2, .last = 3, .key = 4},
                                             {.bytes = 100, .first = 2, .last = 4}};
  const SlotPlan plan = plan_and_check(requests, 8);
  EXPECT_EQ(plan.offset[1], 1280U);
  EXPECT_EQ(plan.offset[2], 1280U);
  EXPECT_EQ(plan.bytes, 1920U);
}

TEST(Planner, RequestsThatMakeNoSenseMeetEverything) {
  const SlotPlan plan = plan_slots({{.bytes = 64, .first = -5, .last = 900}, {.bytes = 64, .first = 1, .last = 1}}, 4, kAlignment);
  EXPECT_EQ(plan.bytes, 128U);
}

// plan_valid is what the other tests rest on: it must see every kind of damage.
TEST(PlanValid, SeesABrokenPlan) {
  const std::vector<SlotRequest> requests = {{.bytes = 128, .first = 0, .last = 2, .key = 1},
                                             {.bytes = 64, .first = 1, .last = 3},
                                             {.bytes = 128, .first = 5, .last = 0, .key = 1},
                                             {.bytes = 64, .first = 3, .last = 4, .key = -1, .pinned = 192}};
  const SlotPlan good = {.offset = {0, 128, 0, 192}, .bytes = 256, .bound = 192};
  ASSERT_TRUE(plan_valid(requests, good, 6, kAlignment));
  const auto broken = [&](size_t request, uint64_t offset, uint64_t bytes = 256) {
    SlotPlan plan = good;
    plan.offset[request] = offset;
    plan.bytes = bytes;
    return !plan_valid(requests, plan, 6, kAlignment);
  };
  EXPECT_TRUE(broken(1, 64)) << "overlap in time and bytes";
  EXPECT_TRUE(broken(1, 192)) << "overlap at one event";
  EXPECT_TRUE(broken(0, 192)) << "equal keys, different offsets";
  EXPECT_TRUE(broken(1, 130)) << "alignment";
  EXPECT_TRUE(broken(3, 128)) << "pin";
  EXPECT_TRUE(broken(3, 192, 250)) << "extent";
  EXPECT_TRUE(broken(1, UINT64_MAX - 63)) << "overflow";
  EXPECT_FALSE(plan_valid(requests, {.offset = {0, 128, 0}, .bytes = 256, .bound = 192}, 6, kAlignment)) << "number of offsets";
}

TEST(PlanValid, SeesRandomDamage) {
  std::mt19937_64 random(11);
  int damaged = 0;
  for (int i = 0; i < 200; ++i) {
    std::vector<SlotRequest> requests = random_requests(random, 20, 12);
    for (SlotRequest& request : requests) request.key = -1;
    SlotPlan plan = plan_slots(requests, 20, kAlignment);
    ASSERT_TRUE(plan_valid(requests, plan, 20, kAlignment));
    const size_t moved = random() % requests.size();
    plan.offset[moved] = random() % (plan.bytes / kAlignment) * kAlignment;
    // The truth, slot by slot in time and byte by byte in units of the alignment.
    bool overlap = plan.offset[moved] + requests[moved].bytes > plan.bytes;
    const auto live = [&](size_t r, int64_t event) {
      const auto [first, last] = std::pair(requests[r].first, requests[r].last);
      return last == SlotRequest::kForever || (first <= last ? first <= event && event <= last : event >= first || event <= last);
    };
    for (size_t r = 0; r < requests.size() && !overlap; ++r) {
      for (int64_t event = 0; event < 20 && r != moved; ++event) {
        if (!live(r, event) || !live(moved, event)) continue;
        overlap |=
            plan.offset[r] < plan.offset[moved] + requests[moved].bytes && plan.offset[moved] < plan.offset[r] + requests[r].bytes;
      }
    }
    EXPECT_EQ(plan_valid(requests, plan, 20, kAlignment), !overlap);
    damaged += overlap;
  }
  EXPECT_GT(damaged, 50);
}

}  // namespace
}  // namespace fsccl
