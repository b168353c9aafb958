// Why a job stands still or has failed: who waits for whom, followed to where it ends.
//
// A rank waits if its last operation of some communicator was submitted and not completed. It waits
// for the rank that its last "blocked" event names, else for those of the communicator that have
// not submitted so many operations. Following that from rank to rank one comes to a rank that died,
// one that calls another operation than the rest, one that does not call the operation at all, one
// that has called it and does not move on, or back to where one began. If that rank is a suspect in
// some recording, silent and not heard of since, it is for this that the others wait.
#pragma once
#include <string>
#include <vector>

#include "trace_recordings.h"

namespace fsccl::trace {

struct Verdict {
  std::string cause;  // "none", "died", "disagree", "absent", "stuck", "suspect", "cycle", "failed"
  std::vector<int> guilty;
  std::string operation;           // that the others wait in
  std::string communicator;        // its name
  std::string text;                // a sentence or two
  std::vector<std::string> ranks;  // what each rank does, a line each
};
Verdict find_cause(const std::vector<Recording>& job);

std::string as_json(const Verdict& verdict);

}  // namespace fsccl::trace
