#include "step.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include "fsccl/insight.h"
#include "numbers.h"
#include "page_step.h"
#include "perf/pool/fsdp2_order.h"
#include "progress.h"
#include "report.h"
#include "step_schedule.h"
#include "step_unit.h"

namespace fsccl::perf {
namespace {

// The time of a step is the sum of the phases before kClockedPhases. The other phases are what the
// tool itself does, while the clock is stopped.
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
constexpr const char* kPhaseNames[kPhases] = {
    "unshard_forward", "unshard_backward", "wait", "reshard",
    "gradient_slot",   "reduce",           "fill", "check"};

// The times of one step on this rank, in microseconds.
struct StepTimes {
  std::array<double, kPhases> phases{};
  std::vector<double> unshard, reduce;  // by unit; `unshard` includes the wait
  double clocked() const {
    double sum = 0;
    for (size_t i = 0; i < kClockedPhases; i++) sum += phases[i];
    return sum;
  }
};

StepShape shape_of(const Session& session, const Model& model, const StepOptions& options) {
  StepShape shape;
  shape.wire_bytes = shape.gradient_bytes = fsccl_dtype_size(options.wire);
  shape.flat = options.layout == FSCCL_LAYOUT_FLAT;
  shape.shared = options.shared;
  shape.gradient_slots = options.gradient_slots;
  shape.by_parameter = options.by_parameter;
  shape.ranks = session.ranks();
  shape.hosts = session.hosts();
  shape.kept =
      kept_units(model, shape.flat, shape.wire_bytes, options.keep != FSCCL_KEEP_NONE,
                 options.keep == FSCCL_KEEP_BUDGET ? options.keep_budget_bytes : UINT64_MAX);
  return shape;
}

// Returns the shape of the slots that one rank sees, which are those that its host shares and its
// own.
StepShape one_rank(StepShape shape) {
  shape.ranks = shape.hosts = 1;
  return shape;
}

class Runner {
 public:
  Runner(Session& session, const Model& model, const StepOptions& options)
      : session_(session),
        model_(model),
        options_(options),
        events_(options.by_parameter
                    ? make_step_by_parameter(model, options.prefetch)
                    : make_step(model.units.size(), options.prefetch, model.stays)),
        shape_(shape_of(session, model, options)),
        progress_(session.rank() == 0) {
    if (!options.report.empty()) {
      if (session.rank() == 0) page_ = std::make_unique<PageFile>(options.report);
      session.end_where(page_ && !page_->open(), 2);
    }
    // The pool has its default limit, except in a dry run, where the limit is more than any order
    // of slots could need, as if all gradients had slots.
    StepShape most = one_rank(shape_);
    most.gradient_slots = true;
    session.open_pool(
        options.dry_run,
        options.dry_run ? 2 * live_bound_bytes(model, events_, most) + (uint64_t{1} << 30) : 0);
    uint64_t largest = 0;
    for (const ModelUnit& unit : model.units)
      largest = std::max(largest, gradient_bytes(unit, options));
    if (!options.dry_run) check_memory(options.gradient_slots ? 0 : largest);
    private_gradients_ =
        std::make_unique<Memory4k>(options.gradient_slots ? 1 : largest, options.dry_run);
    const double start = now_us();
    for (size_t u = 0; u < model.units.size(); u++) {
      progress_.say([&] { return fmt::format("making unit {} of {}", u + 1, model.units.size()); });
      units_.push_back(std::make_unique<StepUnit>(session, model.units[u], u, u == model.stays,
                                                  options, private_gradients_->data()));
    }
    create_us_ = session.max_over_ranks({now_us() - start})[0];
    works_.resize(units_.size());
    if (options.declare) declare();
  }

  uint64_t run() {
    std::vector<StepTimes> measured;
    for (int s = -options_.warmup; s < options_.steps; s++) {
      progress_.say([&] {
        return fmt::format("step {} of {}", s + options_.warmup + 1,
                           options_.steps + options_.warmup);
      });
      if (s == 0) peak_reserved_bytes_ = peak_live_bytes_ = 0;
      StepTimes times = step(nullptr);
      if (s >= 0) measured.push_back(std::move(times));
    }
    bool written = true;
    if (session_.rank() == 0)
      for (const std::string& path : options_.snapshots)
        written &=
            succeeded(fsccl_pool_snapshot(session_.pool(), path.c_str()), "fsccl_pool_snapshot");
    session_.end_where(!written, 1);
    StepReport report = describe();
    if (!options_.report.empty()) step(&report.memory);
    if (!options_.dry_run) {
      for (auto& unit : units_) wrong_ += unit->check_reduced(generation_);
      for (auto& unit : units_) wrong_ += unit->check_gathered(generation_);
    }
    report.wrong = session_.sum_over_ranks(wrong_);
    add_times(measured, &report);
    const std::vector<MachineLimit> limits = measure_limits();
    progress_.clear();
    if (session_.rank() == 0) options_.json ? print_json(report) : print_report(report);
    if (!options_.report.empty())
      session_.end_where(page_ && !page_->write(step_page(report, limits)), 1);
    return report.wrong;
  }

 private:
  void check_memory(uint64_t private_gradients) const {
    constexpr uint64_t kShardAndGradient = 2 * sizeof(float);
    const uint64_t all = model_.elements() * kShardAndGradient +
                         live_bound_bytes(model_, events_, shape_) +
                         private_gradients * static_cast<uint64_t>(shape_.ranks);
    session_.must_fit(all / static_cast<uint64_t>(shape_.hosts),
                      fmt::format("shards, gradients and slots of {}", model_.name),
                      "use more hosts, fewer --layers, or --dry-run, which takes no memory");
  }

  void declare() const {
    std::vector<fsccl_event_t> events;
    for (const StepEvent& event : events_) {
      const fsccl_unit_t unit = units_[event.unit]->handle();
      if (event.kind == EventKind::kGather) events.push_back({FSCCL_EVENT_UNSHARD, unit, 0, 0});
      if (event.kind == EventKind::kReshard) events.push_back({FSCCL_EVENT_RESHARD, unit, 0, 0});
      if (event.kind == EventKind::kRelease)
        events.push_back({FSCCL_EVENT_RELEASE, unit, event.param, 1});
      if (!options_.gradient_slots) continue;
      if (event.kind == EventKind::kGradients) events.push_back({FSCCL_EVENT_GRAD, unit, 0, 0});
      if (event.kind == EventKind::kReduce) events.push_back({FSCCL_EVENT_REDUCE, unit, 0, 0});
      if (event.kind == EventKind::kGradient)
        events.push_back({FSCCL_EVENT_GRAD, unit, event.param, 1});
      if (event.kind == EventKind::kReduceOne)
        events.push_back({FSCCL_EVENT_REDUCE, unit, event.param, 1});
    }
    must(fsccl_pool_schedule(session_.pool(), events.data(), events.size()), "fsccl_pool_schedule");
  }

  // Runs one step. Adds to `memory`, unless that is null, a point at the beginning and one after
  // each event.
  StepTimes step(std::vector<MemoryPoint>* memory) {
    StepTimes times;
    times.unshard.resize(units_.size());
    times.reduce.resize(units_.size());
    const uint32_t generation = ++generation_;
    session_.barrier();  // the step before is over on all ranks
    if (!options_.dry_run)
      for (auto& unit : units_) unit->write_shards(generation);
    session_.barrier();
    const std::vector<uint64_t> bounds = live_bytes(model_, events_, one_rank(shape_));
    fsccl_counters_t before = FSCCL_COUNTERS_INIT, after = FSCCL_COUNTERS_INIT;
    must(fsccl_comm_counters(session_.comm(), &before), "fsccl_comm_counters");
    // At the beginning only the slots of kept units are live, as after the last event.
    if (memory) memory->push_back({0, pool_stats().collective_live_bytes, bounds.back()});
    for (size_t i = 0; i < events_.size(); i++) {
      handle(events_[i], generation, &times);
      const fsccl_pool_stats_t now = pool_stats();
      peak_reserved_bytes_ = std::max(peak_reserved_bytes_, now.reserved_bytes);
      peak_live_bytes_ = std::max(peak_live_bytes_, now.collective_live_bytes);
      if (memory) memory->push_back({times.clocked(), now.collective_live_bytes, bounds[i]});
    }
    must(fsccl_comm_counters(session_.comm(), &after), "fsccl_comm_counters");
    moved_ = after.bytes_read + after.bytes_written - before.bytes_read - before.bytes_written;
    must(fsccl_pool_step(session_.pool()), "fsccl_pool_step");
    return times;
  }

  // Writes gradients off the clock, between two barriers. The first one keeps a rank that is early
  // from writing on a core that another rank, whose clock runs, needs. The second one keeps the
  // others from waiting on the clock for a rank that writes longer.
  template <class Write>
  void fill_between_barriers(StepTimes* times, const Write& write) const {
    if (options_.dry_run) return;
    const double start = now_us();
    session_.barrier();
    write();
    session_.barrier();
    times->phases[kFill] += now_us() - start;
  }

  void handle(const StepEvent& event, uint32_t generation, StepTimes* times) {
    StepUnit& unit = *units_[event.unit];
    const auto clocked = [times](Phase phase, double* unit_time, auto&& work) {
      const double start = now_us();
      work();
      const double spent = now_us() - start;
      times->phases[phase] += spent;
      if (unit_time) *unit_time += spent;
    };
    double *unshard = &times->unshard[event.unit], *reduce = &times->reduce[event.unit];
    switch (event.kind) {
      case EventKind::kGather:  // with prefetch the wait comes later and is counted by itself
        clocked(event.backward ? kUnshardBackward : kUnshardForward, unshard,
                [&] { unit.unshard(options_.prefetch > 0 ? &works_[event.unit] : nullptr); });
        break;
      case EventKind::kWait:
        if (options_.prefetch > 0) clocked(kWait, unshard, [&] { finish(&works_[event.unit]); });
        if (!options_.dry_run) clocked(kCheck, nullptr, [&] { wrong_ += unit.look(generation); });
        break;
      case EventKind::kGradients:
        clocked(kGradientSlot, nullptr, [&] { unit.take_gradients(); });
        fill_between_barriers(times, [&] { unit.write_gradients(generation); });
        break;
      case EventKind::kGradient:
        clocked(kGradientSlot, nullptr, [&] { unit.take_gradient(event.param); });
        fill_between_barriers(times, [&] { unit.write_gradient(event.param, generation); });
        break;
      case EventKind::kRelease:
        clocked(kReshard, nullptr, [&] { unit.release(event.param); });
        break;
      case EventKind::kReduceOne:
        clocked(kReduce, reduce, [&] { unit.reduce(event.param); });
        break;
      case EventKind::kReshard:
        clocked(kReshard, nullptr, [&] { unit.reshard(); });
        break;
      case EventKind::kReduce:
        clocked(kReduce, reduce, [&] { unit.reduce(); });
        break;
    }
  }

  static void finish(fsccl_work_t* work) {
    if (!*work) return;  // the gather was complete when it was issued
    must(fsccl_work_wait(*work, -1), "fsccl_work_wait");
    must(fsccl_work_release(*work), "fsccl_work_release");
    *work = nullptr;
  }

  fsccl_pool_stats_t pool_stats() const {
    fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
    must(fsccl_pool_stats(session_.pool(), &stats), "fsccl_pool_stats");
    return stats;
  }

  // Returns the report without the times and without the result of the final check. It runs before
  // that check, whose own gathers must not count.
  StepReport describe() const {
    const fsccl_pool_stats_t stats = pool_stats();
    StepReport report;
    report.model = model_.name;
    report.parameters = model_.elements();
    report.units = static_cast<int>(model_.units.size());
    report.layers = static_cast<int>(model_.layers());
    report.ranks = session_.ranks();
    report.wire = dtype_name(options_.wire);
    report.layout = options_.layout == FSCCL_LAYOUT_FLAT     ? "flat"
                    : options_.layout == FSCCL_LAYOUT_RAGGED ? "ragged"
                                                             : "per_param";
    report.keep = options_.keep == FSCCL_KEEP_NONE ? "none"
                  : options_.keep == FSCCL_KEEP_ALWAYS
                      ? "always"
                      : fmt::format("budget {}", options_.keep_budget_bytes);
    report.kept_units = static_cast<int>(std::count(shape_.kept.begin(), shape_.kept.end(), true));
    report.gradients = options_.gradient_slots ? "slot" : "private";
    report.sharing = options_.shared ? "shared" : "private";
    report.plan = options_.declare ? "declared" : "recorded";
    report.prefetch = options_.prefetch;
    report.dry_run = options_.dry_run;
    report.create_us = create_us_;
    report.bytes_moved = session_.sum_over_ranks(moved_);
    report.bytes_minimum = minimum_bytes(model_, events_, shape_);
    report.peak_bytes = session_.sum_over_ranks(peak_reserved_bytes_);
    report.live_bound_bytes = live_bound_bytes(model_, events_, shape_);
    report.plan_bound_bytes = plan_bound_bytes(model_, events_, shape_);
    StepShape by_unit = shape_;
    by_unit.by_parameter = false;
    report.by_unit_bytes = plan_bound_bytes(
        model_, make_step(model_.units.size(), options_.prefetch, model_.stays), by_unit);
    report.classic_bytes = classic_bytes(model_, shape_, options_.prefetch);
    const auto fsdp2 =
        fsdp2_step(model_, static_cast<uint64_t>(shape_.ranks), shape_.wire_bytes, shape_.kept);
    report.fsdp2_bytes = fsdp2_reserved_bytes(fsdp2, false);
    report.fsdp2_expandable_bytes = fsdp2_reserved_bytes(fsdp2, true);
    report.by_parameter = options_.by_parameter;
    report.live_peak_bytes = peak_live_bytes_;
    report.planned_bytes = stats.planned_bytes;
    report.plan_hits = stats.plan_hits;
    report.plan_misses = stats.plan_misses;
    report.growths = stats.growths;
    report.reserved_bytes = stats.reserved_bytes;
    const double ranks = shape_.ranks, shards = 4 / static_cast<double>(shape_.wire_bytes);  // fp32
    report.gather_reads = shape_.shared ? shards : shards + ranks - 1;
    report.gather_writes = shape_.shared ? shape_.hosts : ranks;
    report.reduce_reads = ranks;
    report.reduce_writes = 4 / static_cast<double>(shape_.gradient_bytes);
    return report;
  }

  void add_times(const std::vector<StepTimes>& measured, StepReport* report) const {
    for (const StepTimes& times : measured) report->steps_us.push_back(times.clocked());
    report->steps_us = session_.max_over_ranks(report->steps_us);
    const std::vector<double>& totals = report->steps_us;
    report->total_us = percentile(totals, 0.5);
    size_t median = 0;  // the step whose total is closest to the median
    for (size_t i = 1; i < totals.size(); i++)
      if (std::abs(totals[i] - report->total_us) < std::abs(totals[median] - report->total_us))
        median = i;
    const StepTimes& chosen = measured[median];
    const std::vector<double> all =
        session_.all_ranks({chosen.phases.begin(), chosen.phases.end()});
    std::vector<double> sums(kPhases);
    for (size_t rank = 0; rank * kPhases < all.size(); rank++) {
      report->rank_phases_us.emplace_back();
      for (size_t i = 0; i < kPhases; i++) sums[i] += all[rank * kPhases + i];
      for (size_t i = 0; i < kClockedPhases; i++)
        report->rank_phases_us.back().emplace_back(kPhaseNames[i], all[rank * kPhases + i]);
    }
    for (size_t i = 0; i < kPhases; i++)
      (i < kClockedPhases ? report->phases_us : report->off_clock_us)
          .emplace_back(kPhaseNames[i], sums[i] / session_.ranks());
    const std::vector<double> unshard = session_.sum_over_ranks(chosen.unshard),
                              reduce = session_.sum_over_ranks(chosen.reduce);
    for (size_t u = 0; u < units_.size(); u++) {
      const ModelUnit& unit = model_.units[u];
      const auto gathers =
          std::count_if(events_.begin(), events_.end(), [&](const StepEvent& event) {
            return event.kind == EventKind::kGather && event.unit == u &&
                   !(event.backward && shape_.kept[u]);
          });
      report->unit_list.push_back(
          {unit.name, unit.elements(), slots_bytes(unit, shape_, shape_.wire_bytes),
           slots_bytes(unit, shape_, shape_.gradient_bytes), unshard[u] / session_.ranks(),
           reduce[u] / session_.ranks(), static_cast<int>(gathers)});
    }
  }

  // Measures, for the page, what the machine can do at the sizes of the units.
  std::vector<MachineLimit> measure_limits() {
    std::vector<MachineLimit> limits;
    if (options_.report.empty() || options_.dry_run) return limits;
    std::set<uint64_t> sizes;
    for (const ModelUnit& unit : model_.units)
      sizes.insert(slot_bytes(unit, shape_.flat, shape_.wire_bytes));
    for (const uint64_t bytes : sizes) {
      progress_.say([&] { return fmt::format("what this machine can do at {} bytes", bytes); });
      if (bytes < kLeastLimitBytes) continue;
      if (std::optional<MachineLimit> limit = measure_limit(session_, bytes))
        limits.push_back(*limit);
      else if (session_.rank() == 0)
        fmt::print(stderr, "fsccl-perf: left out: {}\n", limit_left_out(bytes));
    }
    return limits;
  }

  const Session& session_;
  const Model& model_;
  const StepOptions& options_;
  const std::vector<StepEvent> events_;
  const StepShape shape_;
  Progress progress_;
  std::unique_ptr<PageFile> page_;
  std::unique_ptr<Memory4k> private_gradients_;
  std::vector<std::unique_ptr<StepUnit>> units_;
  std::vector<fsccl_work_t> works_;
  double create_us_ = 0;
  uint64_t moved_ = 0, wrong_ = 0;
  // peaks of this rank, in the measured steps
  uint64_t peak_reserved_bytes_ = 0, peak_live_bytes_ = 0;
  uint32_t generation_ = 0;
};

}  // namespace

uint64_t run_step(Session& session, const Model& model, const StepOptions& options) {
  return Runner(session, model, options).run();
}

}  // namespace fsccl::perf
