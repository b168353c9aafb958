// fsccl-perf tune compares the plans that the library chooses with all others that it could take,
// and writes a tuning file that corrects the choice. FSCCL_PLAN forces each candidate of
// fsccl_explain on its own communicator. All candidates are measured in turn, one sample each, so
// that a disturbance meets all of them. In host memory, a candidate that is better than the choice
// by more than the spread of the two is measured once more. The choice is *behind* if the best
// candidate is still better by that much.
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
  bool gpu = false;    // tunes memory of GPUs as well (tune_gpu.h)
  bool units = false;  // tunes gathers of units on GPUs (kTunedUnits), too
  std::vector<uint64_t> sizes;
  int repeats = 15;
  std::string output;  // path of the tuning file; empty if there is none
  bool json = false;
};

void run_tune(Session& session, const TuneOptions& options);

}  // namespace fsccl::perf
