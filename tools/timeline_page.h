// The recordings of a job as a page: what each rank did when, which rank waited for which, and how
// fast operations were.
#pragma once
#include <string>
#include <vector>

#include "trace_recordings.h"

namespace fsccl::trace {

// Shows the last so many milliseconds; 0: everything that was recorded.
std::string timeline_page(const std::vector<Recording>& job, double last_ms);

}  // namespace fsccl::trace
