// Searches for better setups, and answers what-if questions. Both forecast many setups of one model
// on one machine.
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

// Varies the degree of sharding, the bytes that are kept, prefetch, slots by parameter,
// checkpointing, the size of micro-batches with the same tokens in a step, and, if the setup names
// a codec, its use. It tries some values of each together: all possible degrees if these are few,
// and else some of them. From the best one it goes on to all other degrees, and to prefetches and
// kept bytes beside it, as long as these are better. The setup itself is among the choices. The
// choices that fit come first, by the time of their step. The others follow, by their memory.
Result<std::vector<Choice>> search(Forecaster& forecaster, const StepConfig& setup);

// Returns true if the two are equal in all that a search varies.
bool alike(const StepConfig& a, const StepConfig& b);

struct WhatIf {
  std::string what;
  double step_ns = 0;
  bool fits = true;
  std::string misfit;  // why there is no forecast of it; mostly empty
};
// Forecasts a network twice and half as fast, one host whose link has a quarter of the speed (all
// ranks wait for that host), a straggler that is 10 % slower, and twice the ranks. Ranks of one
// host use no network.
Result<std::vector<WhatIf>> what_if(const Forecaster& forecaster, const StepConfig& setup);

// Forecasts the step on 8 to 100,000 ranks, with the same work for each rank. Where there are fewer
// ranks than the setup's degree of sharding, the shards are over all of them.
struct ScalePoint {
  int ranks = 0;
  int shard_over = 0;
  double step_ns = 0, exposed_ns = 0, tokens_per_s_per_rank = 0;
  uint64_t memory = 0;
  bool fits = false;
  std::string misfit;  // why there is no forecast on so many ranks; mostly empty
};
Result<std::vector<ScalePoint>> scaling(Forecaster& forecaster, const StepConfig& setup);

}  // namespace fsccl::forecast
