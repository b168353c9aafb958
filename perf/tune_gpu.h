// `fsccl-perf tune --memory gpu`: the algorithms of collectives on memory of GPUs, which are
// candidates with a price like plans of host memory (select/native.h). FSCCL_PLAN forces each
// algorithm without an obstacle on a communicator of its own, and all are measured in turn.
#pragma once
#include <string>
#include <vector>

#include "tune.h"

namespace fsccl::perf {

struct GpuTuning {
  std::vector<std::string> rules;   // where an algorithm beats the choice by more than the spread
  std::vector<std::string> prices;  // entries of a tuning file's "native", as JSON
  uint64_t points = 0, behind = 0;
};

// Collective. Prints a row for each point.
GpuTuning tune_gpu(const Session& session, const TuneOptions& options);

}  // namespace fsccl::perf
