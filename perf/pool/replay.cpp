#include "perf/pool/replay.h"

#include <algorithm>
#include <cstddef>

#include "allocators/host/arena.h"
#include "allocators/placement/backed_bytes.h"
#include "allocators/placement/collective_region.h"
#include "numbers.h"
#include "perf/pool/system_calls.h"
#include "perf/pool/timing.h"

namespace fsccl::perf {
namespace {

constexpr uint64_t kCapacity = uint64_t{1} << 60;  // bytes of a region without memory
// Traces with more live bytes than half of this are rehearsed: their slots are placed and counted,
// but have no memory.
constexpr uint64_t kMostMemory = uint64_t{256} << 20;
constexpr uint64_t kAddresses = uint64_t{16} << 30;  // addresses of an arena
constexpr size_t kWarmUp = 4;                        // steps until the plan and its table exist

// A region, and what a pool does around it: the arena is asked for memory when a slot lies beyond
// the existing memory.
class ReplayedPool {
 public:
  ReplayedPool(uint32_t streams, bool record, bool rehearsal)
      : rehearsal_(rehearsal), region_(rehearsal ? kCapacity : 4 * kMostMemory, record, streams) {
    const uint64_t capacity = rehearsal ? kCapacity : 4 * kMostMemory;
    region_.set_capacity(capacity, capacity, rehearsal ? kCapacity : kAddresses);
  }

  bool make_arena() {
    if (rehearsal_) return true;
    Result<HostArena> made = HostArena::create(1, 0, kAddresses);
    if (!made.ok()) return false;
    arena_.emplace(made.take());
    return true;
  }
  bool declare(const std::vector<StepEvent>& step) {
    const Status status = region_.declare(step);
    if (!status.ok()) refusal_ = status.text();
    return status.ok() && carry_out({.given_back = {}, .made = {{0, region_.extent()}}});
  }
  bool apply(const StepEvent& event) {
    switch (event.op) {
      case StepOp::kTake: {
        const Result<SlotGrant> grant =
            region_.take(event.key, event.bytes, event.stable, ++position_, event.stream);
        return grant.ok() && back(grant.value().offset, event.bytes);
      }
      case StepOp::kGiveBack:
        return region_.give_back(event.key, ++position_).ok();
      case StepOp::kUse:
        return region_.use(event.key, event.stream).ok();
      case StepOp::kRecord:
        return region_.record(event.key, event.stream).ok();
      case StepOp::kWait:
        return region_.wait(event.key, event.stream).ok();
    }
    return false;
  }
  bool step(const std::vector<StepEvent>& events) {
    for (const StepEvent& event : events)
      if (!apply(event)) return false;
    end_step();
    return true;
  }
  // Ends a step. As in a pool, if other bytes exist than the plan needs at two step boundaries in a
  // row, then memory that the plan does not need is given back, and memory of the plan that had
  // been given back is taken again.
  void end_step() {
    region_.end_step();
    const uint64_t whole = region_.whole_extent();
    const bool torn = !backed_.is(whole);
    if (torn && torn_) carry_out(backed_.mend(whole, region_));
    torn_ = torn && !torn_;
  }
  CollectiveRegion& region() { return region_; }
  uint64_t growths() const { return growths_; }
  uint64_t host_waits() const { return waits_; }
  uint64_t reserved_bytes() const { return backed_.bytes(); }
  uint64_t most_bytes() const { return most_; }
  // Returns why a declared step was refused, or an empty text.
  const std::string& refusal() const { return refusal_; }

 private:
  bool back(uint64_t begin, uint64_t bytes) {
    const uint64_t end = begin + (bytes + CollectiveRegion::kAlignment - 1) /
                                     CollectiveRegion::kAlignment * CollectiveRegion::kAlignment;
    return end <= backed_.whole() || carry_out(backed_.place(begin, end, region_, UINT64_MAX));
  }
  bool carry_out(const BackedBytes::Change& change) {
    for (const auto& [begin, end] : change.given_back) {
      // The program waits for these streams before the bytes can be given back.
      waits_ += region_.cooling(begin, end);
      if (arena_) arena_->release(0, begin, end - begin);
      backed_.given_back(begin, end);
    }
    for (const auto& [begin, end] : change.made) {
      if (arena_ && !arena_->reserve(0, begin, end - begin, false).ok()) return false;
      backed_.made(begin, end);
      ++growths_;
    }
    most_ = std::max(most_, backed_.bytes());
    return true;
  }

  bool rehearsal_;
  CollectiveRegion region_;
  std::optional<HostArena> arena_;
  std::string refusal_;
  uint64_t position_ = 0, growths_ = 0, waits_ = 0;
  uint64_t most_ = 0;  // the most bytes that existed so far
  BackedBytes backed_{CollectiveRegion::kAlignment};
  bool torn_ = false;  // true if other bytes existed than the plan needs at the last boundary
};

using Steps = std::vector<std::vector<StepEvent>>;

// The results of one way to describe the trace to the pool.
class Replay {
 public:
  Replay(const Trace& trace, const ReplayOptions& options, const char* how)
      : trace_(trace), options_(options) {
    row_.trace = trace.name;
    row_.allocator = "fsccl";
    row_.how = how;
    row_.live = trace.live_bytes;
    rehearsal_ = trace.live_bytes > kMostMemory / 2;
    if (rehearsal_) row_.note = "dry";
  }

  // `first` is declared, or recorded by being run once; then `steps` are run again and again.
  ReplayRow run(const std::vector<StepEvent>& first, const Steps& steps, bool learn,
                uint64_t clique_bound) {
    row_.clique_bound = clique_bound;
    ReplayedPool pool(trace_.streams, learn || options_.recorded, rehearsal_);
    if (!prepare(pool, first, steps)) return failed(pool);
    const uint64_t growths = pool.growths(), waits = learn ? 0 : pool.region().added_waits();
    uint64_t least = UINT64_MAX, most = 0;
    BatchTimes times;
    for (int nth = 0; nth < options_.steps; ++nth) {
      const std::vector<StepEvent>& step = steps[static_cast<size_t>(nth) % steps.size()];
      if (!times.run(step, [&](const StepEvent& event) { return pool.apply(event); }))
        return failed(pool);
      pool.end_step();
      least = std::min(least, pool.reserved_bytes());
      most = std::max(most, pool.reserved_bytes());
    }
    row_.reserved = most;
    row_.most_reserved = pool.most_bytes();
    row_.variance = most - least;
    row_.growths = pool.growths() - growths;
    row_.host_waits = pool.host_waits();
    row_.added_waits = pool.region().added_waits() - waits;
    row_.with_order_p50_ns = percentile(times.samples_ns(), 0.5);
    row_.with_order_p99_ns = percentile(times.samples_ns(), 0.99);
    if (!learn) time_alone(first);
    row_.system_calls = count(first, steps, learn);
    return row_;
  }
  void set_plan_us(double plan_us) { row_.plan_us = plan_us; }

 private:
  // Runs steps until the pool has settled: until it has its plan and has given back what the plan
  // does not need, or until it has seen all steps and has learned from them.
  bool prepare(ReplayedPool& pool, const std::vector<StepEvent>& first, const Steps& steps) {
    if (!pool.make_arena()) return false;
    if (!options_.recorded && !pool.declare(first)) return false;
    for (size_t i = 0;
         i < whole_rounds(steps.size(), kWarmUp) + (steps.size() > 1 ? steps.size() : 0); ++i)
      if (!pool.step(steps[i % steps.size()])) return false;
    return true;
  }
  // Times the same slots for a program with one stream, which makes only allocations and releases.
  void time_alone(const std::vector<StepEvent>& step) {
    std::vector<StepEvent> moves;
    for (StepEvent event : step) {
      if (!event.moves_slot()) continue;
      event.stream = 0;
      moves.push_back(event);
    }
    ReplayedPool pool(1, false, true);
    if (!pool.declare(moves)) return;
    BatchTimes times;
    for (int nth = -static_cast<int>(kWarmUp); nth < options_.steps; ++nth) {
      if (nth == 0) times.clear();
      if (!times.run(moves, [&](const StepEvent& event) { return pool.apply(event); })) return;
      pool.region().end_step();
    }
    row_.p50_ns = percentile(times.samples_ns(), 0.5);
    row_.p99_ns = percentile(times.samples_ns(), 0.99);
  }
  std::optional<uint64_t> count(const std::vector<StepEvent>& first, const Steps& steps,
                                bool learn) {
    return count_system_calls([&](const CallCounter& counter) {
      ReplayedPool pool(trace_.streams, learn || options_.recorded, rehearsal_);
      if (!prepare(pool, first, steps)) return false;
      counter.begin();
      for (int nth = 0; nth < options_.steps; ++nth)
        if (!pool.step(steps[static_cast<size_t>(nth) % steps.size()])) return false;
      counter.end();
      return true;
    });
  }
  ReplayRow failed(ReplayedPool& pool) {
    row_.note = "failed: " +
                (pool.refusal().empty()
                     ? "a slot was refused with " + format_bytes(pool.region().extent()) + " in use"
                     : pool.refusal());
    row_.failed = true;
    return row_;
  }

  const Trace& trace_;
  const ReplayOptions& options_;
  ReplayRow row_;
  bool rehearsal_ = false;
};

struct Planned {
  double us = 0;
  uint64_t clique_bound = 0;
};

Planned plan(const Trace& trace, const std::vector<StepEvent>& step) {
  Planned result{.us = 1e300};
  for (int tries = 0; tries < 3; ++tries) {
    CollectiveRegion region(kCapacity, false, trace.streams);
    const auto start = std::chrono::steady_clock::now();
    if (!region.declare(step).ok()) return {};
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    result = {std::min(result.us, time.count()), region.plan_clique_bound()};
  }
  return result;
}

}  // namespace

std::vector<ReplayRow> replay_pool(const Trace& trace, const ReplayOptions& options) {
  std::vector<ReplayRow> rows;
  if (trace.steady) {
    const Planned planned = plan(trace, trace.steps[0]);
    Replay replay(trace, options, options.recorded ? "recorded" : "declared");
    replay.set_plan_us(planned.us);
    rows.push_back(replay.run(trace.steps[0], {trace.steps[0]}, false, planned.clique_bound));
    return rows;
  }
  std::vector<StepEvent> whole;
  for (const auto& step : trace.steps) whole.insert(whole.end(), step.begin(), step.end());
  const Planned all = plan(trace, whole), first = plan(trace, trace.steps[0]);
  Replay known(trace, options, "declared");
  known.set_plan_us(all.us);
  rows.push_back(known.run(whole, {whole}, false, all.clique_bound));
  Replay unseen(trace, options, "unseen");
  unseen.set_plan_us(first.us);
  rows.push_back(unseen.run(trace.steps[0], trace.steps, true, all.clique_bound));
  return rows;
}

ReplayRow replay_array(const Trace& trace, const ReplayOptions& options) {
  ReplayRow row{
      .trace = trace.name, .allocator = "array", .how = "by index", .live = trace.live_bytes};
  std::vector<uint64_t> offset(trace.keys, 0);
  std::vector<uint64_t> taken(trace.keys, 0);
  Steps moves(trace.steps.size());
  for (size_t i = 0; i < moves.size(); ++i)
    for (const StepEvent& event : trace.steps[i])
      if (event.moves_slot()) moves[i].push_back(event);
  BatchTimes times;
  volatile uint64_t sink = 0;
  for (int nth = 0; nth < options.steps + 2; ++nth) {
    if (nth == 2) times.clear();
    times.run(moves[static_cast<size_t>(nth) % moves.size()], [&](const StepEvent& event) {
      if (event.takes()) sink = offset[event.key] + ++taken[event.key];
      if (event.op == StepOp::kGiveBack) --taken[event.key];
      return true;
    });
  }
  row.p50_ns = percentile(times.samples_ns(), 0.5);
  row.p99_ns = percentile(times.samples_ns(), 0.99);
  return row;
}

}  // namespace fsccl::perf
