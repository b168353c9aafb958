// fsccl-perf tune: whether the plans that the library chooses are the best of those that it can be
// made to take, and the tuning file that makes them so. Each candidate of fsccl_explain is forced,
// by FSCCL_PLAN, on a communicator of its own; all are measured in turn, a sample each, so that
// what disturbs one disturbs all, and what is better than the choice once more. The choice is
// behind where the best one's median is lower by more than the spread of the two.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "buffer.h"
#include "collective_table.h"
#include "session.h"

namespace fsccl::perf {

inline constexpr const char* kTunedUnits = "unit_unshard";

struct TuneOptions {
  std::vector<const CollectiveKind*> collectives;
  std::vector<Memory> memories;
  bool gpu = false;    // memory of GPUs as well (tune_gpu.h)
  bool units = false;  // with it, the gathers of units on GPUs (kTunedUnits)
  std::vector<uint64_t> sizes;
  int repeats = 15;
  std::string output;  // the tuning file; empty: none
  bool json = false;
};

void run_tune(Session& session, const TuneOptions& options);

}  // namespace fsccl::perf
