// Explains why a job stands still or has failed: which rank waits for which, followed to the end of
// the chain.
//
// A death, and then two ranks whose calls differ, are looked for first, unless the job went on
// after them. Otherwise waits are followed: those in operations, and those outside of them ("waits"
// events). A rank waits if its last operation of some communicator was submitted and not completed,
// and also if it failed and the rank has done nothing since. It waits for the rank that
// its last "blocked" event names, or else for the ranks of the communicator that have not submitted
// so many operations. The chain ends at a rank that does not call the operation, at a rank that has
// called it and does not move on, or at the rank where it began. If that rank is a suspect in some
// recording, silent and not heard of since, this is what the others wait for.
#pragma once
#include <string>
#include <vector>

#include "trace_recordings.h"

namespace fsccl::trace {

struct Verdict {
  std::string cause;  // "none", "died", "disagree", "absent", "left", "stuck", "suspect", "cycle",
                      // "failed"
  std::vector<int> guilty;
  std::string operation;           // in which the others wait
  std::string communicator;        // its name
  std::string text;                // a sentence or two
  std::vector<std::string> ranks;  // a line for each rank, with its state
};
Verdict find_cause(const std::vector<Recording>& job);

std::string as_json(const Verdict& verdict);

}  // namespace fsccl::trace
