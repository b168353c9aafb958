// `fsccl-perf tune --memory gpu`: the ways of collectives on memory of GPUs, which are candidates
// with a price like plans of host memory (select/native.h). Each way without an obstacle is forced
// by FSCCL_PLAN on a communicator of its own, and all are measured in turn.
#pragma once
#include <string>
#include <vector>

#include "tune.h"

namespace fsccl::perf {

struct GpuTuning {
  std::vector<std::string> rules;   // where a way is better than the choice by more than the spread
  std::vector<std::string> prices;  // entries of a tuning file's "native", as JSON
  uint64_t points = 0, behind = 0;
};

// Collective. Prints a row for each point.
GpuTuning tune_gpu(const Session& session, const TuneOptions& options);

}  // namespace fsccl::perf
