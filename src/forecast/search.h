// Searches for better setups, and answers what-if questions: the forecast of many setups of one
// model on one machine.
#pragma once
#include <string>
#include <vector>

#include "forecast/forecast.h"

namespace fsccl::forecast {

struct Choice {
  StepConfig setup;
  double step_ns = 0, exposed_ns = 0, tokens_per_s_per_rank = 0;
  uint64_t memory = 0;
  bool fits = false;
};

// Degree of sharding, bytes that are kept, prefetch, by parameter, checkpointing, and the codec
// where the setup names one: those that fit, by the time of their step; then those that do not, by
// their memory.
Result<std::vector<Choice>> search(Forecaster& forecaster, const StepConfig& setup);

struct WhatIf {
  std::string what;
  double step_ns = 0;
  bool fits = true;
};
// Network twice and half as fast, one host's link at a quarter (all ranks wait for it), a straggler
// of 10 %, twice the ranks.
Result<std::vector<WhatIf>> what_if(const Forecaster& forecaster, const StepConfig& setup);

// The step with the same work for each rank on 8 to 100,000 ranks.
struct ScalePoint {
  int ranks = 0;
  double step_ns = 0, exposed_ns = 0, tokens_per_s_per_rank = 0;
  uint64_t memory = 0;
};
Result<std::vector<ScalePoint>> scaling(Forecaster& forecaster, const StepConfig& setup);

}  // namespace fsccl::forecast
