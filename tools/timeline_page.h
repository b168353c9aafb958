// Makes a page of the recordings of a job: what each rank did when, which rank waited for which,
// and how fast operations were.
#pragma once
#include <string>
#include <vector>

#include "trace_recordings.h"

namespace fsccl::trace {

// The page shows the last `last_ms` milliseconds, or everything that was recorded if that is 0.
std::string timeline_page(const std::vector<Recording>& job, double last_ms);

}  // namespace fsccl::trace
