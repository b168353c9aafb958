// fsccl-perf tune --memory gpu tunes collectives on memory of GPUs, whose algorithms are candidates
// with a price like plans of host memory (select/native.h). FSCCL_PLAN forces each algorithm
// without an obstacle on its own communicator, and all are measured in turn.
#pragma once
#include <string>
#include <vector>

#include "tune.h"

namespace fsccl::perf {

struct GpuTuning {
  std::vector<std::string> rules;   // for algorithms that beat the choice by more than the spread
  std::vector<std::string> prices;  // entries of a tuning file's "native", as JSON
  uint64_t points = 0, behind = 0;
};

// Collective. Prints a row for each point.
GpuTuning tune_gpu(const Session& session, const TuneOptions& options);

}  // namespace fsccl::perf
