#include "forecast/simulate.h"

#include <algorithm>

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
        wait(event.unit, arrival_[event.unit]);
        break;
      case EventKind::compute:
        compute(event.unit, event.backward,
                event.backward ? unit.backward_ns + unit.recompute_ns : unit.forward_ns);
        break;
      case EventKind::reduce:
        // By parameter, the parts of a unit follow each other. Each part takes a share of the time
        // that is its share of the elements.
        last_reduced_ = event.unit;
        issue(Span::Of::reduce, event.unit,
              part(event) * (unit.price.reduce.ns + unit.price.replicas.ns),
              part(event) * (unit.price.reduce.busy_ns + unit.price.replicas.busy_ns));
        break;
      default:
        break;
    }
    if (first_batch) line_.event_ns.push_back(compute_);
  }

  Timeline finish(double optimizer_ns) {
    wait(last_reduced_, communication_);  // the update needs all gradients
    line_.optimizer_ns = optimizer_ns;
    if (optimizer_ns > 0)
      line_.spans.push_back({Span::Of::optimizer, 0, compute_, compute_ + optimizer_ns});
    line_.step_ns = compute_ + optimizer_ns;
    return std::move(line_);
  }

 private:
  double part(const Event& event) const {
    return event.param == Event::kAll ? 1 : units_[event.unit].param_share[event.param];
  }
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
    if (first_batch_) line_.spans.push_back({of, unit, begin, communication_});
    return communication_;
  }
  void wait(size_t unit, double until) {
    const double exposed = std::max(0.0, until - compute_);
    compute_ += exposed;
    line_.exposed_ns += exposed;
    line_.units[unit].exposed_ns += exposed;
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
  Timeline line_;
  double compute_ = 0, communication_ = 0;
  size_t last_reduced_ = 0;
  bool first_batch_ = true;
};

}  // namespace

Timeline simulate(const std::vector<Event>& events, const std::vector<UnitTimes>& units,
                  const std::vector<bool>& kept, int micro_batches, bool overlaps,
                  double optimizer_ns) {
  Simulation simulation(units, kept, overlaps);
  for (int batch = 0; batch < micro_batches; batch++)
    for (const Event& event : events) simulation.run(event, batch == 0);
  return simulation.finish(optimizer_ns);
}

}  // namespace fsccl::forecast
