#include "forecast/simulate.h"

#include <algorithm>
#include <cmath>
#include <deque>

namespace fsccl::forecast {
namespace {

class Simulation {
 public:
  Simulation(const std::vector<UnitTimes>& units, const std::vector<bool>& kept, bool overlaps)
      : units_(units), kept_(kept), overlaps_(overlaps), arrival_(units.size()) {
    line_.units.resize(units.size());
  }

  void run(const Event& event, bool first_batch) {
    first_batch_ = first_batch;
    const UnitTimes& unit = units_[event.unit];
    switch (event.kind) {
      case EventKind::gather:
        if (event.backward && kept_[event.unit])
          arrival_[event.unit] = issue(Span::Of::gather, event.unit, unit.kept_ns, 0);
        else
          arrival_[event.unit] =
              issue(Span::Of::gather, event.unit, unit.price.gather.ns, unit.price.gather.busy_ns);
        break;
      case EventKind::wait:
        wait(arrival_[event.unit]);
        break;
      case EventKind::compute:
        compute(event.unit, event.backward,
                event.backward ? unit.backward_ns + unit.recompute_ns : unit.forward_ns);
        break;
      case EventKind::reduce: {
        const Carried reduction = unit.price.reduction(event.param);
        issue(Span::Of::reduce, event.unit, reduction.ns, reduction.busy_ns);
        break;
      }
      default:
        break;
    }
    if (first_batch) line_.event_ns.push_back(compute_);
  }

  // How far the communication that was issued lies behind the computation. All that a micro-batch
  // waits for is issued in it, so its times follow from this alone.
  double behind_ns() const { return std::max(0.0, communication_ - compute_); }
  double now_ns() const { return compute_; }
  // The sums so far, without spans and events.
  Timeline sums() const {
    Timeline sums;
    sums.units = line_.units;
    sums.compute_ns = line_.compute_ns;
    sums.communication_ns = line_.communication_ns;
    sums.exposed_ns = line_.exposed_ns;
    return sums;
  }

  // Adds `times` micro-batches that take as long as the last one, which began with `before`.
  void repeat(int times, const Timeline& before, double began_ns) {
    const auto more = [times](double& sum, double was) { sum += times * (sum - was); };
    for (size_t u = 0; u < line_.units.size(); u++) {
      more(line_.units[u].compute_ns, before.units[u].compute_ns);
      more(line_.units[u].communication_ns, before.units[u].communication_ns);
      more(line_.units[u].exposed_ns, before.units[u].exposed_ns);
    }
    more(line_.compute_ns, before.compute_ns);
    more(line_.communication_ns, before.communication_ns);
    more(line_.exposed_ns, before.exposed_ns);
    const double added = times * (compute_ - began_ns);
    compute_ += added;
    communication_ += added;
    for (Issued& one : issued_) one.begin_ns += added, one.end_ns += added;
  }

  Timeline finish(double optimizer_ns) {
    wait(communication_);  // the update needs all gradients
    line_.optimizer_ns = optimizer_ns;
    if (optimizer_ns > 0)
      line_.spans.push_back({Span::Of::optimizer, 0, compute_, compute_ + optimizer_ns});
    line_.step_ns = compute_ + optimizer_ns;
    return std::move(line_);
  }

 private:
  double issue(Span::Of of, size_t unit, double ns, double busy_ns) {
    const double begin = std::max(communication_, compute_);
    if (!overlaps_) {
      compute_ += busy_ns;
      line_.exposed_ns += busy_ns;
      line_.units[unit].exposed_ns += busy_ns;
    }
    communication_ = begin + ns;
    line_.communication_ns += ns;
    line_.units[unit].communication_ns += ns;
    issued_.push_back({unit, begin, communication_});
    if (first_batch_) line_.spans.push_back({of, unit, begin, communication_});
    return communication_;
  }
  // The computation waits for what is communicated meanwhile, which may be of units that were
  // issued before the one that it waits for.
  void wait(double until) {
    if (until <= compute_) return;
    while (!issued_.empty() && issued_.front().end_ns <= compute_) issued_.pop_front();
    for (const Issued& one : issued_)
      line_.units[one.unit].exposed_ns +=
          std::max(0.0, std::min(until, one.end_ns) - std::max(compute_, one.begin_ns));
    line_.exposed_ns += until - compute_;
    compute_ = until;
  }
  void compute(size_t unit, bool backward, double ns) {
    if (first_batch_ && ns > 0)
      line_.spans.push_back(
          {backward ? Span::Of::backward : Span::Of::forward, unit, compute_, compute_ + ns});
    compute_ += ns;
    line_.compute_ns += ns;
    line_.units[unit].compute_ns += ns;
  }

  const std::vector<UnitTimes>& units_;
  const std::vector<bool>& kept_;
  const bool overlaps_;
  std::vector<double> arrival_;
  struct Issued {
    size_t unit;
    double begin_ns, end_ns;
  };
  std::deque<Issued> issued_;  // communication that may not have ended, in its order
  Timeline line_;
  double compute_ = 0, communication_ = 0;
  bool first_batch_ = true;
};

}  // namespace

Timeline simulate(const std::vector<Event>& events, const std::vector<UnitTimes>& units,
                  const std::vector<bool>& kept, int micro_batches, bool overlaps,
                  double optimizer_ns) {
  constexpr double kSame = 1e-9;  // part of a micro-batch's time
  Simulation simulation(units, kept, overlaps);
  for (int batch = 0; batch < micro_batches; batch++) {
    const double began_ns = simulation.now_ns(), behind_ns = simulation.behind_ns();
    const Timeline before = simulation.sums();
    for (const Event& event : events) simulation.run(event, batch == 0);
    if (std::abs(simulation.behind_ns() - behind_ns) > kSame * (simulation.now_ns() - began_ns))
      continue;
    simulation.repeat(micro_batches - 1 - batch, before, began_ns);  // they are all alike
    break;
  }
  return simulation.finish(optimizer_ns);
}

}  // namespace fsccl::forecast
