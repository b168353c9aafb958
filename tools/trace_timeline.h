// The events of a job over time, for Perfetto (ui.perfetto.dev) and for figures.
#pragma once
#include <string>
#include <vector>

#include "trace_recordings.h"

namespace fsccl::trace {

// One operation of one rank.
struct Span {
  int rank = 0;
  std::string communicator;
  int ranks = 0;  // the communicator's size
  const Event* call = nullptr;
  int64_t begin_ns = 0, end_ns = 0;  // end_ns: that of the recording if not complete
  bool complete = false;
  struct Wait {
    const Event* blocked;
    int64_t begin_ns, end_ns;
  };
  std::vector<Wait> waits;  // the waits in which the rank slept, in order
};
// Says in words what the operation of a "blocked" event waits for.
std::string wait_name(const Event& blocked);
std::vector<Span> spans_of(const Recording& recording);

// Returns the job as trace events of Chrome: a process for each rank, a thread for each
// communicator, waits inside their operations, and as instants what was lost or failed.
std::string as_perfetto(const std::vector<Recording>& job);

}  // namespace fsccl::trace
