// The events of a job over time: for Perfetto (ui.perfetto.dev), and as figures.
#pragma once
#include <string>
#include <vector>

#include "trace_recordings.h"

namespace fsccl::trace {

// One operation of one rank.
struct Span {
  int rank = 0;
  std::string communicator;
  const Event* call = nullptr;
  int64_t begin_ns = 0, end_ns = 0;  // end: of the recording, where it is not complete
  bool complete = false;
  struct Wait {
    const Event* blocked;
    int64_t begin_ns, end_ns;
  };
  std::vector<Wait> waits;  // that slept, one after the other
};
// Says in words what the operation of a "blocked" event waits for.
std::string wait_name(const Event& blocked);
std::vector<Span> spans_of(const Recording& recording);

// In the form of Chrome's trace events: a process a rank, a thread a communicator, waits inside
// their operations; what was lost or failed as instants.
std::string as_perfetto(const std::vector<Recording>& job);

}  // namespace fsccl::trace
