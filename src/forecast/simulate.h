// A step as events on two clocks. Computation runs in the order of the program, communication in
// the order in which it is issued, and each waits for the other at the points at which the program
// waits. If a rank's processor also does the work of the plans (on CPUs), this work delays the
// computation. All ranks are alike, so one stands for all.
#pragma once
#include <string>
#include <vector>

#include "forecast/prices.h"
#include "forecast/schedule.h"

namespace fsccl::forecast {

struct UnitTimes {
  UnitPrice price;
  double kept_ns = 0;  // time of an unshard if the slot still has the parameters
  double forward_ns = 0, backward_ns = 0, recompute_ns = 0;
};

struct Span {
  enum class Of : uint8_t { forward, backward, gather, reduce, optimizer };
  Of of{};
  size_t unit = 0;
  double begin_ns = 0, end_ns = 0;
};

struct UnitReport {
  double compute_ns = 0, communication_ns = 0;
  double exposed_ns = 0;  // time of its communication while the computation waited for any
};

struct Timeline {
  double step_ns = 0, compute_ns = 0, communication_ns = 0, exposed_ns = 0, optimizer_ns = 0;
  std::vector<UnitReport> units;
  std::vector<Span> spans;       // spans of the first micro-batch, and that of the optimizer
  std::vector<double> event_ns;  // times at which the events of the first micro-batch are over
};

Timeline simulate(const std::vector<Event>& events, const std::vector<UnitTimes>& units,
                  const std::vector<bool>& kept, int micro_batches, bool overlaps,
                  double optimizer_ns);

}  // namespace fsccl::forecast
