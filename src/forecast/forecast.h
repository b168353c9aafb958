// A forecast of one setup of a model on a machine. The Forecaster keeps from one setup to the next
// the layouts and prices of each kind of unit, and the plans of slots. Nothing is made for each
// rank, so a forecast of 100,000 ranks takes as much memory as one of 8.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "forecast/memory.h"
#include "forecast/simulate.h"

namespace fsccl::forecast {

struct Forecast {
  StepConfig setup;
  Memory memory;
  uint64_t memory_limit = 0;  // 0: no limit is known
  Timeline line;
  Slots slots;
  std::vector<Event> events;
  std::vector<bool> kept;
  std::vector<UnitTimes> units;
  std::vector<MemoryPoint> points;
  // bytes that a rank moves in its host and receives from others, in a step
  double within_bytes = 0, between_bytes = 0;
  double low_ns = 0, high_ns = 0;  // the interval of the step's time

  bool fits() const { return memory_limit == 0 || memory.total() <= memory_limit; }
  double tokens_per_s_per_rank() const { return setup.tokens() / line.step_ns * 1e9; }
};

// The possible error of a forecast, as a fraction of the time of computation, and of the time of
// communication.
struct Uncertainty {
  double compute = 0.3, communication = 0.3;
  std::string origin;
};

class Forecaster {
 public:
  Forecaster(Model model, Machine machine);

  const Model& model() const { return model_; }
  const Machine& machine() const { return machine_; }
  Uncertainty uncertainty;

  // Says why there is no forecast of the setup on this machine, and what to give. Returns an empty
  // text if there is one.
  std::string misfit(const StepConfig& setup) const;
  // Bytes that a rank may take; 0: no limit is known.
  uint64_t memory_limit(const StepConfig& setup) const {
    return setup.memory_limit ? setup.memory_limit : machine_.with_ranks(setup.ranks).memory_bytes;
  }
  Result<Forecast> run(const StepConfig& setup);
  double mfu(const Forecast& forecast) const;
  // Finds the efficiency with which the forecast of a measured step takes the measured time. It is
  // the one free parameter. The uncertainty of computation is `spread` from then on.
  Status calibrate(const StepConfig& measured, double step_s, double spread,
                   const std::string& source);

 private:
  struct Layouts {
    std::vector<UnitLayout> kinds;
    std::vector<const UnitLayout*> units;
  };
  Result<const Layouts*> places_of(const StepConfig& setup);
  Result<const std::vector<UnitPrice>*> prices_of(const StepConfig& setup, const Layouts& places);
  Result<const Slots*> slots_of(const StepConfig& setup, const Layouts& places,
                                const std::vector<Event>& events, const std::vector<bool>& kept);
  std::vector<UnitTimes> times_of(const StepConfig& setup,
                                  const std::vector<UnitPrice>& prices) const;
  Timeline timeline(const Forecast& forecast, const std::vector<UnitTimes>& units) const;
  Status interval(Forecast* forecast, const Layouts& places);

  Model model_;
  Machine machine_;
  std::vector<size_t> kind_;   // kind of each unit
  std::vector<size_t> first_;  // a unit of each kind
  std::map<std::string, Layouts> places_;
  std::map<std::string, std::vector<UnitPrice>> prices_;
  std::map<std::string, Slots> slots_;
};

}  // namespace fsccl::forecast
