// A trace of the allocations of training, as JSON lines, one record a line, in the order of the
// program:
//   {"op":"meta","name":..}                   the first
//   {"op":"alloc","id":7,"bytes":N,"stream":"ag","kind":"ag_out","key":"3/ag"}
//   {"op":"use","id":7,"stream":"compute"}    work that touches the block was put on that stream
//   {"op":"free","id":7,"stream":"compute"}
//   {"op":"event","id":4,"stream":"compute"}  follows all that is on the stream so far
//   {"op":"wait","stream":"ag","event":4}     later work on the stream follows the event
//   {"op":"mark","what":"step_end"}           or eval_end
// What is allocated is freed before the trace ends: its steps are repeated. More members may be
// there. Kinds that a pool of units owns: ag_out (gathered units), param (parameters apart from
// them), grad, rs_in, rs_out; records of blocks of other kinds are passed over. Parameters have one
// offset in all occurrences of their key: param where there is any, else ag_out.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocators/placement/step_schedule.h"

namespace fsccl::perf {

struct Trace {
  std::string name;
  uint32_t streams = 0, keys = 0;  // all are below
  std::vector<std::vector<fsccl::StepEvent>> steps;
  uint64_t live_bytes = 0;  // the most at once: no allocator can hold less
  uint64_t blocks = 0;      // that are allocated in all steps
  bool steady = false;      // all steps are alike
};
// Nothing, and *error names the file, the line and what is wrong there, when it is not such a
// trace.
std::optional<Trace> read_trace(const std::string& path, std::string* error);
std::optional<Trace> parse_trace(const std::string& text, const std::string& source,
                                 std::string* error);

}  // namespace fsccl::perf
