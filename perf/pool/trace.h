// A trace of the allocations of training, as JSON lines, one record a line, in the order of the
// program:
//   {"op":"meta","name":..}                   the first
//   {"op":"alloc","id":7,"bytes":N,"stream":"ag","kind":"ag_out","key":"3/ag"}
//   {"op":"use","id":7,"stream":"compute"}    work that touches the block was put on that stream
//   {"op":"free","id":7,"stream":"compute"}
//   {"op":"event","id":4,"stream":"compute"}  follows all that is on the stream so far
//   {"op":"wait","stream":"ag","event":4}     later work on the stream follows the event
//   {"op":"mark","what":"step_end"}           or eval_end
// Each block is freed before the trace ends, because its steps are repeated. Records may have more
// members. A pool of units owns the kinds ag_out (gathered units), param (parameters apart from
// them), grad, rs_in and rs_out; records of blocks of other kinds are skipped. Parameters have the
// same offset in all occurrences of their key. Their kind is param if the trace has that, and
// otherwise ag_out.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocators/placement/step_schedule.h"

namespace fsccl::perf {

struct Trace {
  std::string name;
  uint32_t streams = 0, keys = 0;  // numbers of streams and of keys, which begin at 0
  std::vector<std::vector<fsccl::StepEvent>> steps;
  uint64_t live_bytes = 0;  // the most bytes live at once; no allocator can hold less
  uint64_t blocks = 0;      // blocks that all steps together allocate
  bool steady = false;      // true if all steps are alike
};
// Both return nothing if the text is not such a trace; *error then names the file, the line and
// what is wrong there.
std::optional<Trace> read_trace(const std::string& path, std::string* error);
std::optional<Trace> parse_trace(const std::string& text, const std::string& source,
                                 std::string* error);

}  // namespace fsccl::perf
