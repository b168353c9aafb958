#include "allocators/placement/planner.h"

#include <gtest/gtest.h>

#include <ctime>
#include <iterator>
#include <map>
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
        const SlotPlan plan = plan_of({.unit_bytes = transformer(6400, 6400, layers, 6400),
                                       .prefetch = prefetch,
                                       .gradients = gradients});
        EXPECT_EQ(plan.bytes, plan.bound)
            << "prefetch " << prefetch << " layers " << layers << " gradients " << gradients;
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
      const SlotPlan plan =
          plan_of({.unit_bytes = model.bytes, .prefetch = prefetch, .gradients = variant % 2 == 1});
      const double ratio = static_cast<double>(plan.bytes) / static_cast<double>(plan.bound);
      EXPECT_LE(ratio, 1.01) << model.name << " prefetch " << prefetch << " gradients "
                             << variant % 2;
    }
  }
}

// Returns a step of a model that has a slot for each parameter. The root unit (embedding and head)
// is used at the begin and at the end of the forward pass, the equal layers between, with prefetch
// 1. Backward gives the slots back one by one, as their gradients come. The first and the last
// layer are live at the same time as the root. With an even number of layers, layers that take two
// places in turn do not fit that, so somewhere in the step a layer must lie at a third place.
std::vector<StepEvent> step_by_parameter(const std::vector<uint64_t>& root,
                                         const std::vector<uint64_t>& layer, uint64_t layers,
                                         bool gradients) {
  std::vector<StepEvent> events;
  const auto bytes_of = [&](uint64_t unit) -> const std::vector<uint64_t>& {
    return unit == 0 ? root : layer;
  };
  const auto take = [&](uint64_t unit, size_t i, bool gradient) {
    const uint64_t key = (gradient ? kGradient : 0) + unit * 16 + i;
    events.push_back({.stable = !gradient, .key = key, .bytes = bytes_of(unit)[i]});
  };
  const auto give_back = [&](uint64_t unit, size_t i, bool gradient) {
    events.push_back({.op = StepOp::kGiveBack, .key = (gradient ? kGradient : 0) + unit * 16 + i});
  };
  const auto gather = [&](uint64_t unit) {
    for (size_t i = 0; i < bytes_of(unit).size(); ++i) take(unit, i, false);
  };
  const auto pass_back = [&](uint64_t unit) {
    for (size_t i = bytes_of(unit).size(); i-- > 0;) {
      if (gradients) take(unit, i, true);
      if (gradients && i + 1 < bytes_of(unit).size()) give_back(unit, i + 1, true);
      give_back(unit, i, false);
    }
    if (gradients) give_back(unit, 0, true);
  };
  gather(0);
  for (uint64_t unit = 0; unit <= layers; ++unit) {
    gather(unit < layers ? unit + 1 : 0);
    for (size_t i = 0; i < bytes_of(unit).size(); ++i) give_back(unit, i, false);
  }
  gather(layers);
  pass_back(0);
  for (uint64_t unit = layers; unit > 0; --unit) {
    if (unit > 1) gather(unit - 1);
    pass_back(unit);
  }
  return events;
}

TEST(Planner, SlotsByParameterStayNearTheBound) {
  const std::vector<uint64_t> root{8'405'385 * 64, 64, 8'405'385 * 64},
      layer{
          1'048'576 * 64, 65'536 * 64, 65'536 * 64, 1'048'576 * 64, 3'407'872 * 64, 3'407'872 * 64,
          3'407'872 * 64, 64,          64};
  for (const bool gradients : {false, true}) {
    const std::vector<StepEvent> events = step_by_parameter(root, layer, 126, gradients);
    const SlotPlan plan = plan_and_check(requests_of(events), static_cast<int64_t>(events.size()));
    EXPECT_LE(static_cast<double>(plan.bytes),
              (gradients ? 1.03 : 1.01) * static_cast<double>(plan.bound))
        << gradients;
  }
}

TEST(Planner, BytesAreSharedFromTheEventAfterTheLast) {
  EXPECT_EQ(plan_and_check(
                {{.bytes = 64, .first = 0, .last = 1}, {.bytes = 64, .first = 2, .last = 3}}, 4)
                .bytes,
            64U);
  EXPECT_EQ(plan_and_check(
                {{.bytes = 64, .first = 0, .last = 2}, {.bytes = 64, .first = 2, .last = 3}}, 4)
                .bytes,
            128U);
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
  const std::vector<SlotRequest> requests = {
      {.bytes = 640, .first = 0, .last = 3},
      {.bytes = 640, .first = 5, .last = 1, .key = 4, .pinned = 1280},
      {.bytes = 640, .first = 2, .last = 3, .key = 4},
      {.bytes = 100, .first = 2, .last = 4}};
  const SlotPlan plan = plan_and_check(requests, 8);
  EXPECT_EQ(plan.offset[1], 1280U);
  EXPECT_EQ(plan.offset[2], 1280U);
  EXPECT_EQ(plan.bytes, 1920U);
}

TEST(Planner, RequestsThatMakeNoSenseMeetEverything) {
  const SlotPlan plan =
      plan_slots({{.bytes = 64, .first = -5, .last = 900}, {.bytes = 64, .first = 1, .last = 1}}, 4,
                 kAlignment);
  EXPECT_EQ(plan.bytes, 128U);
}

TEST(Planner, RequestsOfNoBytesHaveConflictsToo) {
  const std::vector<SlotRequest> requests = {{.bytes = 0, .first = 0, .last = 2},
                                             {.bytes = 0, .first = 1, .last = 3},
                                             {.bytes = 64, .first = 0, .last = 3},
                                             {.bytes = 0, .first = 3, .last = 3}};
  const SlotPlan plan = plan_and_check(requests, 4);
  EXPECT_EQ(plan.bytes, 3 * kAlignment);
  EXPECT_NE(plan.offset[0], plan.offset[1]);
}

// Long steps are planned without the graph of conflicts, in the order of their events.
TEST(Planner, RandomRequestsAreValidInTheOrderOfTheStep) {
  std::mt19937_64 random(17);
  for (int i = 0; i < 200; ++i) {
    const int64_t events = 2 + static_cast<int64_t>(random() % 80);
    std::vector<SlotRequest> requests = random_requests(random, events, 1 + random() % 40);
    requests.push_back({.bytes = 100, .first = 0, .last = 0, .pinned = 4096});
    requests.push_back({.bytes = 100, .first = 1, .last = 1, .pinned = 4096});
    const SlotPlan plan = plan_slots(requests, events, kAlignment, 0);
    ASSERT_TRUE(plan_valid(requests, plan, events, kAlignment));
  }
}

// Checks a plan by taking slots and giving them back in the order of the events, and looks whether
// any two overlap.
bool valid_in_order(const std::vector<SlotRequest>& requests, const SlotPlan& plan) {
  std::vector<std::tuple<int64_t, bool, size_t>> edges;
  for (size_t i = 0; i < requests.size(); ++i) {
    edges.emplace_back(requests[i].first, true, i);
    edges.emplace_back(requests[i].last + 1, false, i);
  }
  std::sort(edges.begin(), edges.end());
  std::map<uint64_t, uint64_t> used;  // offset -> end
  for (const auto& [event, begins, i] : edges) {
    const uint64_t offset = plan.offset[i], end = offset + requests[i].bytes;
    if (!begins) {
      used.erase(offset);
      continue;
    }
    const auto [place, placed] = used.emplace(offset, end);
    if (!placed || end > plan.bytes) return false;
    if (place != used.begin() && std::prev(place)->second > offset) return false;
    if (std::next(place) != used.end() && std::next(place)->first < end) return false;
  }
  return true;
}

double seconds_of(const std::vector<SlotRequest>& requests, int64_t events, SlotPlan& plan) {
  // The processor's time is measured, so that other work on the machine does not count.
  const std::clock_t start = std::clock();
  plan = plan_slots(requests, events, kAlignment);
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Three slots that meet in pairs, one pair after the other, take three places, however many other
// slots come and go in the step.
TEST(Planner, TheCliqueBoundHoldsForStepsOfManySlots) {
  constexpr uint64_t kUnit = 1 << 20;
  std::vector<SlotRequest> requests;
  for (int64_t pair = 0; pair < 3; ++pair)
    for (const int64_t key : {pair, (pair + 1) % 3})
      requests.push_back({.bytes = kUnit, .first = 2 * pair, .last = 2 * pair + 1, .key = key});
  int64_t events = 6;
  for (; events < 10'000; ++events)
    requests.push_back({.bytes = kAlignment, .first = events, .last = events});
  const SlotPlan plan = plan_slots(requests, events, kAlignment);
  EXPECT_EQ(plan.bound, 2 * kUnit);
  EXPECT_EQ(plan.clique_bound, 3 * kUnit);
  EXPECT_EQ(plan.bytes, 3 * kUnit);
  EXPECT_TRUE(valid_in_order(requests, plan));
}

// Between two occurrences of a slot another slot has its bytes. The planner finds that only with
// the graph of conflicts, which it must also make for several steps of a model with some thousand
// parameters.
void expect_graph(int64_t live) {
  std::vector<SlotRequest> requests;
  for (int64_t event = 0; event < live; ++event)
    requests.push_back({.bytes = kAlignment, .first = event, .last = live + 3});
  constexpr uint64_t kUnit = 1 << 20;
  requests.push_back({.bytes = kUnit, .first = live, .last = live, .key = 1});
  requests.push_back({.bytes = kUnit, .first = live + 1, .last = live + 1});
  requests.push_back({.bytes = kUnit, .first = live + 2, .last = live + 2, .key = 1});
  const SlotPlan plan = plan_slots(requests, live + 4, kAlignment);
  EXPECT_EQ(plan.bytes, static_cast<uint64_t>(live) * kAlignment + kUnit);
  EXPECT_TRUE(valid_in_order(requests, plan));
}

TEST(Planner, StepsOfSlotsLiveAtOnceHaveAGraph) { expect_graph(1000); }
// 21 million pairs are to be compared.
TEST(LongSteps, OfManySlotsLiveAtOnceHaveAGraph) { expect_graph(6500); }

// The work on a long step is bounded, however much is live at once. The limit is loose, because the
// thread sanitizer makes the planner some ten times slower.
void expect_planned_within(double seconds_allowed, int64_t events) {
  const size_t slots = static_cast<size_t>(events) / 2;
  for (const size_t live : {size_t{4}, size_t{40}, size_t{500}, slots}) {
    std::mt19937_64 random(live);
    std::vector<SlotRequest> requests;
    std::vector<size_t> held;
    for (int64_t event = 0; event < events; ++event) {
      const bool full = requests.size() == slots || (held.size() >= live && random() % 2 == 0) ||
                        held.size() >= 2 * live;
      if (full || (held.size() > live / 2 && live < slots && random() % 2 == 0)) {
        const size_t at = random() % held.size();
        requests[held[at]].last = event;
        std::swap(held[at], held.back());
        held.pop_back();
      } else {
        held.push_back(requests.size());
        requests.push_back(
            {.bytes = (1 + random() % 64) * kAlignment, .first = event, .last = events - 1});
      }
    }
    SlotPlan plan;
    const double seconds = seconds_of(requests, events, plan);
    EXPECT_LT(seconds, seconds_allowed) << live;
    EXPECT_TRUE(valid_in_order(requests, plan)) << live;
    EXPECT_LE(static_cast<double>(plan.bytes), 2 * static_cast<double>(plan.bound)) << live;
  }
}

#ifdef __SANITIZE_THREAD__
constexpr double kLongestPlanning = 180;
#else
constexpr double kLongestPlanning = 30;
#endif
TEST(Planner, StepsOfManyEventsArePlannedInSeconds) {
  expect_planned_within(kLongestPlanning / 8, int64_t{1} << 14);
}
TEST(LongSteps, ArePlannedInSeconds) { expect_planned_within(kLongestPlanning, int64_t{1} << 17); }

// The other tests rely on plan_valid, so it must see every kind of damage.
TEST(PlanValid, SeesABrokenPlan) {
  const std::vector<SlotRequest> requests = {
      {.bytes = 128, .first = 0, .last = 2, .key = 1},
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
  EXPECT_FALSE(
      plan_valid(requests, {.offset = {0, 128, 0}, .bytes = 256, .bound = 192}, 6, kAlignment))
      << "number of offsets";
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
    // The truth is found by comparing each slot with the moved one, in time and byte by byte in
    // units of the alignment.
    bool overlap = plan.offset[moved] + requests[moved].bytes > plan.bytes;
    const auto live = [&](size_t r, int64_t event) {
      const auto [first, last] = std::pair(requests[r].first, requests[r].last);
      return last == SlotRequest::kForever ||
             (first <= last ? first <= event && event <= last : event >= first || event <= last);
    };
    for (size_t r = 0; r < requests.size() && !overlap; ++r) {
      for (int64_t event = 0; event < 20 && r != moved; ++event) {
        if (!live(r, event) || !live(moved, event)) continue;
        overlap |= plan.offset[r] < plan.offset[moved] + requests[moved].bytes &&
                   plan.offset[moved] < plan.offset[r] + requests[r].bytes;
      }
    }
    EXPECT_EQ(plan_valid(requests, plan, 20, kAlignment), !overlap);
    damaged += overlap;
  }
  EXPECT_GT(damaged, 50);
}

}  // namespace
}  // namespace fsccl
