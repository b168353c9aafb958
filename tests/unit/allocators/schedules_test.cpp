// Tests steps of all kinds of sharded training: plans reach the bound, the checker proves them, and
// a region that has recorded the steps serves them by their plan.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "allocators/placement/step_valid.h"
#include "region_driver.h"

namespace fsccl {
namespace {

using Step = std::vector<StepEvent>;
// The keys of these slots of a unit are the number of the unit plus one of these.
constexpr uint64_t kPartial = kGradient << 1, kReduced = kGradient << 2;

// Builds a step unit by unit. The units are numbered from `first` on, and `pages` has the size of
// each.
class Script {
 public:
  explicit Script(std::vector<uint64_t> pages, uint64_t first = 0)
      : pages_(std::move(pages)), first_(first) {}

  void fetch(size_t unit) {
    if (!holds(first_ + unit)) take(first_ + unit, pages_[unit], true);
  }
  void drop(size_t unit) { give(first_ + unit); }
  void forward(size_t from, size_t to, size_t prefetch, const std::function<void(size_t)>& after) {
    for (size_t u = from; u < to; ++u) {
      for (size_t ahead = u; ahead <= u + prefetch && ahead < to; ++ahead) fetch(ahead);
      after(u);
    }
  }
  // The gradient of a unit is given back after the next unit's backward. Without `sync` it stays.
  void backward(size_t from, size_t to, size_t prefetch, bool sync,
                const std::function<void(size_t)>& before = {}) {
    for (size_t u = to; u-- > from;) {
      for (size_t ahead = 0; ahead <= prefetch && u >= from + ahead; ++ahead) {
        if (before) before(u - ahead);
        fetch(u - ahead);
      }
      if (!holds(kGradient + first_ + u)) take(kGradient + first_ + u, pages_[u], false);
      drop(u);
      if (sync && u + 1 < to) give(kGradient + first_ + u + 1);
    }
    if (sync) give(kGradient + first_ + from);
  }
  void take(uint64_t key, uint64_t pages, bool stable) {
    step.push_back(take_event(key, pages, stable)), held_.insert(key);
  }
  void give(uint64_t key) { step.push_back(give_event(key)), held_.erase(key); }
  bool holds(uint64_t key) const { return held_.contains(key); }
  uint64_t first() const { return first_; }
  uint64_t pages(size_t unit) const { return pages_[unit]; }

  Step step;

 private:
  std::vector<uint64_t> pages_;
  uint64_t first_;
  std::set<uint64_t> held_;
};

std::vector<uint64_t> layers(size_t count) {
  std::vector<uint64_t> pages(count, 17);
  pages.front() = 40;
  pages.back() = 41;
  return pages;
}

Step train(const std::vector<uint64_t>& pages, size_t prefetch, bool reshard, uint64_t first = 0) {
  Script script(pages, first);
  const size_t last = pages.size() - 1;
  script.forward(0, pages.size(), prefetch, [&](size_t u) {
    if (reshard && u != last) script.drop(u);
  });
  script.backward(0, pages.size(), prefetch, true);
  return script.step;
}

// Returns a step in which a unit is sharded over 4 ranks after forward, instead of over all.
Step train_with_partial_groups(const std::vector<uint64_t>& pages) {
  Script script(pages);
  const size_t last = pages.size() - 1;
  script.forward(0, pages.size(), 1, [&](size_t u) {
    if (u == last) return;
    script.take(kPartial + u, (pages[u] + 3) / 4, false);
    script.drop(u);
  });
  size_t lowest = last;
  script.backward(0, pages.size(), 1, true, [&](size_t u) {
    if (u >= lowest) return;
    lowest = u;
    script.fetch(u);
    script.give(kPartial + u);
  });
  return script.step;
}

Step accumulate(const std::vector<uint64_t>& pages, int batches, bool sync) {
  Script script(pages);
  const size_t last = pages.size() - 1;
  for (int batch = 1; batch <= batches; ++batch) {
    script.forward(0, pages.size(), 1, [&](size_t u) {
      if (u != last) script.drop(u);
    });
    script.backward(0, pages.size(), 1, sync || batch == batches);
  }
  return script.step;
}

// Returns a step with activation checkpoints over segments of units: the forward pass of a segment
// runs once more before its backward pass.
Step train_with_checkpoints(const std::vector<uint64_t>& pages, size_t prefetch, size_t segment) {
  Script script(pages);
  script.forward(0, pages.size(), prefetch, [&](size_t u) { script.drop(u); });
  for (size_t end = pages.size(); end > 0;) {
    const size_t begin = end > segment ? end - segment : 0;
    script.forward(begin, end, prefetch, [&](size_t u) {
      if (u + 1 < end) script.drop(u);
    });
    script.backward(begin, end, prefetch, true);
    end = begin;
  }
  return script.step;
}

// Returns a step of replicas: a gradient that was reduced within the group stays until it has been
// reduced between the groups, two units later.
Step train_replicated(const std::vector<uint64_t>& pages) {
  Script script(pages);
  for (const StepEvent& event : train(pages, 1, true)) {
    const uint64_t unit = event.key - kGradient;
    if (event.op == StepOp::kGiveBack && event.key >= kGradient) {
      script.take(kReduced + unit, (pages[unit] + 7) / 8, false);
      if (script.holds(kReduced + unit + 2)) script.give(kReduced + unit + 2);
    }
    script.step.push_back(event);
  }
  for (const uint64_t unit : {1, 0}) script.give(kReduced + unit);
  return script.step;
}

// Returns a step of one rank of a pipeline, with `chunks` virtual stages of equal units. The rank
// runs some forward passes first, and then forward and backward passes in turn.
Step pipeline(const std::vector<uint64_t>& pages, size_t chunks, size_t batches) {
  Script script(pages);
  const size_t units = pages.size() / chunks;
  // two batches on a chunk, then the next one
  const auto chunk_of = [&](size_t nth) { return nth / 2 % chunks; };
  const size_t all = chunks * batches, ahead = chunks + 1;
  const auto forward = [&](size_t nth) {
    const size_t from = chunk_of(nth) * units;
    script.forward(from, from + units, 1, [&](size_t u) { script.drop(u); });
  };
  const auto backward = [&](size_t nth) {
    const size_t from = (chunks - 1 - chunk_of(nth)) * units;
    script.backward(from, from + units, 1, nth + 2 * chunks >= all);
  };
  for (size_t nth = 0; nth < all + ahead; ++nth) {
    if (nth < all) forward(nth);
    if (nth >= ahead) backward(nth - ahead);
  }
  return script.step;
}

struct Case {
  std::string name;
  std::vector<Step> steps;  // steps that take turns
};

std::vector<Case> all_cases() {
  const std::vector<uint64_t> dense = layers(12);
  std::vector<uint64_t> experts = dense;
  for (size_t u = 1; u + 1 < experts.size(); ++u) experts[u] = u % 2 ? 5 : 60;
  std::vector<Case> cases;
  for (const size_t prefetch : {1, 2, 3})
    for (const bool reshard : {true, false})
      cases.push_back({"prefetch " + std::to_string(prefetch) + (reshard ? "" : ", kept"),
                       {train(dense, prefetch, reshard)}});
  for (const size_t segment : {1, 3})
    cases.push_back({"checkpoints of " + std::to_string(segment) + " units",
                     {train_with_checkpoints(dense, 1, segment)}});
  cases.push_back({"partial groups", {train_with_partial_groups(dense)}});
  cases.push_back({"accumulation with sync", {accumulate(dense, 3, true), train(dense, 1, true)}});
  cases.push_back(
      {"accumulation without sync", {accumulate(dense, 3, false), train(dense, 1, true)}});
  cases.push_back({"replicated", {train_replicated(dense)}});
  cases.push_back({"dense and expert units", {train(experts, 1, true), train(experts, 2, true)}});
  cases.push_back({"two models in turn", {train(dense, 1, true), train(layers(7), 1, true, 100)}});
  Step both = train(dense, 1, true);
  Script teacher(layers(8), 200);
  teacher.forward(0, 8, 1, [&](size_t u) { teacher.drop(u); });
  both.insert(both.begin(), teacher.step.begin(), teacher.step.end());
  cases.push_back({"teacher and student", {both, teacher.step}});
  cases.push_back({"pipeline of 2 virtual stages", {pipeline(std::vector<uint64_t>(8, 17), 2, 4)}});
  cases.push_back({"pipeline of 4 virtual stages",
                   {pipeline(std::vector<uint64_t>(8, 17), 4, 8), train(layers(8), 1, true)}});
  return cases;
}

TEST(Schedules, AreAllPlannedToTheBoundAndProven) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.name);
    const JointPlan plan = plan_steps(c.steps, {}, kPage);
    EXPECT_EQ(steps_problem(plan, {}, kPage), "");
    EXPECT_LE(static_cast<double>(plan.bytes), 1.01 * static_cast<double>(plan.clique_bound));
  }
}

TEST(Schedules, AreAllServedFromWhatWasRecorded) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.name);
    Driver driver(true);
    for (const Step& step : c.steps) driver.step(step);
    const uint64_t misses = driver.region.misses();
    driver.offsets_of_key.clear();
    for (int round = 0; round < 4; ++round)
      for (const Step& step : c.steps) driver.step(step);
    EXPECT_EQ(driver.region.misses(), misses);
    EXPECT_TRUE(driver.region.by_table());
    EXPECT_EQ(driver.region.extent(), driver.region.plan_bytes());
    for (const auto& [key, offsets] : driver.offsets_of_key) EXPECT_EQ(offsets.size(), 1U) << key;
  }
}

}  // namespace
}  // namespace fsccl
