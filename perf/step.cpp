#include "step.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "numbers.h"
#include "report.h"
#include "step_schedule.h"
#include "step_unit.h"

namespace fsccl::perf {
namespace {

// A step's time is the sum of the first six; the rest is what the tool itself does, with the clock stopped.
enum Phase : size_t {
  kUnshardForward,
  kUnshardBackward,
  kWait,
  kReshard,
  kGradientSlot,
  kReduce,
  kClockedPhases,
  kFill = kClockedPhases,
  kCheck,
  kPhases
};
constexpr const char* kPhaseNames[kPhases] = {"unshard_forward", "unshard_backward", "wait", "reshard",
                                              "gradient_slot",   "reduce",           "fill", "check"};
using Phases = std::array<double, kPhases>;

class Runner {
 public:
  Runner(const Session& session, const Model& model, const StepOptions& options)
      : session_(session), model_(model), options_(options), events_(make_step(model.units.size(), options.prefetch)) {
    shape_.wire_bytes = shape_.gradient_bytes = fsccl_dtype_size(options.wire);
    shape_.flat = options.layout == FSCCL_LAYOUT_FLAT;
    shape_.shared = options.shared;
    shape_.gradient_slots = options.gradient_slots;
    shape_.ranks = session.ranks();
    shape_.hosts = session.hosts();
    shape_.kept = kept_units(model, shape_.flat, shape_.wire_bytes, options.keep != FSCCL_KEEP_NONE,
                             options.keep == FSCCL_KEEP_BUDGET ? options.keep_budget_bytes : UINT64_MAX);
    uint64_t most = 0;
    for (const ModelUnit& unit : model.units) most = std::max(most, gradient_bytes(unit, options));
    private_gradients_ = std::make_unique<Memory4k>(options.gradient_slots ? 1 : most);
    for (size_t u = 0; u < model.units.size(); u++)
      units_.push_back(std::make_unique<StepUnit>(session, model.units[u], u, options, private_gradients_->data()));
    works_.resize(units_.size());
    if (options.declare) declare();
  }

  uint64_t run() {
    std::vector<Phases> measured;
    std::vector<double> totals;
    for (int s = -options_.warmup; s < options_.steps; s++) {
      const Phases phases = step(static_cast<uint32_t>(++generation_));
      if (s < 0) continue;
      measured.push_back(phases);
      double total = 0;
      for (size_t i = 0; i < kClockedPhases; i++) total += phases[i];
      totals.push_back(total);
    }
    StepReport report = describe();
    for (auto& unit : units_) wrong_ += unit->check_reduced(generation_);
    for (auto& unit : units_) wrong_ += unit->check_gathered(generation_);
    report.wrong = session_.sum_over_ranks(wrong_);
    times(session_.max_over_ranks(totals), measured, &report);
    if (session_.rank() == 0) options_.json ? print_json(report) : print_report(report);
    return report.wrong;
  }

 private:
  void declare() const {
    std::vector<fsccl_event_t> events;
    for (const StepEvent& event : events_) {
      const fsccl_unit_t unit = units_[event.unit]->handle();
      if (event.kind == EventKind::kGather) events.push_back({FSCCL_EVENT_UNSHARD, unit});
      if (event.kind == EventKind::kReshard) events.push_back({FSCCL_EVENT_RESHARD, unit});
      if (event.kind == EventKind::kGradients && options_.gradient_slots) events.push_back({FSCCL_EVENT_GRAD, unit});
      if (event.kind == EventKind::kReduce && options_.gradient_slots) events.push_back({FSCCL_EVENT_REDUCE, unit});
    }
    must(fsccl_pool_schedule(session_.pool(), events.data(), events.size()), "fsccl_pool_schedule");
  }

  Phases step(uint32_t generation) {
    Phases phases{};
    for (auto& unit : units_) unit->write_shards(generation);
    session_.barrier();
    fsccl_counters_t before = FSCCL_COUNTERS_INIT, after = FSCCL_COUNTERS_INIT;
    must(fsccl_comm_counters(session_.comm(), &before), "fsccl_comm_counters");
    for (const StepEvent& event : events_) handle(event, generation, &phases);
    must(fsccl_comm_counters(session_.comm(), &after), "fsccl_comm_counters");
    moved_ = after.bytes_read + after.bytes_written - before.bytes_read - before.bytes_written;
    must(fsccl_pool_step(session_.pool()), "fsccl_pool_step");
    return phases;
  }

  void handle(const StepEvent& event, uint32_t generation, Phases* phases) {
    StepUnit& unit = *units_[event.unit];
    const auto clocked = [phases](Phase phase, auto&& work) {
      const double start = now_us();
      work();
      (*phases)[phase] += now_us() - start;
    };
    switch (event.kind) {
      case EventKind::kGather:  // with prefetch the wait comes later and is counted by itself
        clocked(event.backward ? kUnshardBackward : kUnshardForward,
                [&] { unit.unshard(options_.prefetch > 0 ? &works_[event.unit] : nullptr); });
        break;
      case EventKind::kWait:
        if (options_.prefetch > 0) clocked(kWait, [&] { finish(&works_[event.unit]); });
        clocked(kCheck, [&] { wrong_ += unit.look(generation); });
        break;
      case EventKind::kGradients:
        clocked(kGradientSlot, [&] { unit.take_gradients(); });
        clocked(kFill, [&] {
          unit.write_gradients(generation);
          session_.barrier();  // so that what one rank needs longer for this does not become a wait of the others
        });
        break;
      case EventKind::kReshard:
        clocked(kReshard, [&] { unit.reshard(); });
        break;
      case EventKind::kReduce:
        clocked(kReduce, [&] { unit.reduce(); });
        break;
    }
  }

  static void finish(fsccl_work_t* work) {
    if (!*work) return;  // complete when it was issued
    must(fsccl_work_wait(*work, -1), "fsccl_work_wait");
    must(fsccl_work_release(*work), "fsccl_work_release");
    *work = nullptr;
  }

  // Everything but the times and the final check, whose own gathers must not count.
  StepReport describe() const {
    fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
    must(fsccl_pool_stats(session_.pool(), &stats), "fsccl_pool_stats");
    StepReport report;
    report.model = model_.name;
    report.parameters = model_.elements();
    report.units = static_cast<int>(model_.units.size());
    report.layers = static_cast<int>(model_.layers());
    report.ranks = session_.ranks();
    report.wire = dtype_name(options_.wire);
    report.layout = shape_.flat ? "flat" : "per_param";
    report.keep = options_.keep == FSCCL_KEEP_NONE     ? "none"
                  : options_.keep == FSCCL_KEEP_ALWAYS ? "always"
                                                       : fmt::format("budget {}", options_.keep_budget_bytes);
    report.kept_units = static_cast<int>(std::count(shape_.kept.begin(), shape_.kept.end(), true));
    report.gradients = options_.gradient_slots ? "slot" : "private";
    report.sharing = options_.shared ? "shared" : "private";
    report.plan = options_.declare ? "declared" : "recorded";
    report.prefetch = options_.prefetch;
    report.bytes_moved = session_.sum_over_ranks(moved_);
    report.bytes_minimum = minimum_bytes(model_, events_, shape_);
    report.peak_bytes = session_.sum_over_ranks(stats.reserved_bytes);
    report.live_bound_bytes = live_bound_bytes(model_, events_, shape_);
    report.live_peak_bytes = stats.collective_peak_bytes;
    report.planned_bytes = stats.planned_bytes;
    report.plan_hits = stats.plan_hits;
    report.plan_misses = stats.plan_misses;
    report.growths = stats.growths;
    return report;
  }

  void times(const std::vector<double>& totals, const std::vector<Phases>& measured, StepReport* report) const {
    report->steps_us = totals;
    report->total_us = percentile(totals, 0.5);
    size_t median = 0;  // the step whose total is closest to the median
    for (size_t i = 1; i < totals.size(); i++)
      if (std::abs(totals[i] - report->total_us) < std::abs(totals[median] - report->total_us)) median = i;
    const std::vector<double> sums = session_.sum_over_ranks(std::vector<double>(measured[median].begin(), measured[median].end()));
    for (size_t i = 0; i < kPhases; i++)
      (i < kClockedPhases ? report->phases_us : report->off_clock_us).emplace_back(kPhaseNames[i], sums[i] / session_.ranks());
  }

  const Session& session_;
  const Model& model_;
  const StepOptions& options_;
  const std::vector<StepEvent> events_;
  StepShape shape_;
  std::unique_ptr<Memory4k> private_gradients_;
  std::vector<std::unique_ptr<StepUnit>> units_;
  std::vector<fsccl_work_t> works_;
  uint64_t moved_ = 0, wrong_ = 0;
  uint32_t generation_ = 0;
};

}  // namespace

uint64_t run_step(const Session& session, const Model& model, const StepOptions& options) {
  return Runner(session, model, options).run();
}

}  // namespace fsccl::perf
