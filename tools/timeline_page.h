// The recordings of a job as a page for people: what each rank did when, who waited for whom, and
// how fast operations were.
#pragma once
#include <string>
#include <vector>

#include "trace_recordings.h"

namespace fsccl::trace {

// of the last so many; 0: all that was recorded
std::string timeline_page(const std::vector<Recording>& job, double last_ms);

}  // namespace fsccl::trace
