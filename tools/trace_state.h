// Tells from the recording of a rank what the rank was in at the end, and which failures and deaths
// it had got over.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trace_recordings.h"

namespace fsccl::trace {

// An operation that a rank has begun and not completed, or a wait outside of operations.
struct Inside {
  std::string tag, name;
  Event call;
  std::optional<int> blocked_on;  // a rank of the job
  int64_t since_ns = 0;
  bool failed = false;  // it ended with the communicator's error, and the rank did nothing since
};

struct State {
  const Recording* recording = nullptr;
  // For each communicator: the wait outside of operations, and the first operation that is not
  // complete. Operations that failed come last.
  std::vector<Inside> inside;
  std::map<std::string, uint64_t> submitted, completed;           // by tag: the last sequence
  std::map<std::string, std::map<uint64_t, const Event*>> calls;  // by tag and sequence
  // by communicator: its failure, and the last operation that it completed
  std::map<int, const Event*> failures, completions;
  std::set<std::pair<std::string, int>> left;  // tags, and ranks that left with a goodbye
  uint64_t unnamed = 0;  // calls of communicators for which the table had no room
  int64_t last_ns = 0;
  const Event* last = nullptr;         // the last call that began or was complete
  const Event* last_active = nullptr;  // that call, or a later wait outside of operations
  const Event* ending = nullptr;       // the failure after which the rank completed nothing
};
using States = std::map<int, State>;  // by rank

State state_of(const Recording& recording);

// Returns true if the rank went on after what this event of its recording tells of: it completed
// an operation of a communicator that was made later, or of any if the event's communicator is
// gone.
bool got_over(const State& state, const Event& event);

// Returns true if some rank saw that `rank` left the communicator of this tag with a goodbye.
bool has_left(const States& states, int rank, const std::string& tag);

// A death, as one rank saw it.
struct Loss {
  int dead = 0, by = 0;
  bool got_over = false;
};
// Returns the deaths that are no consequence of a failure. A rank whose communicator has failed
// ends, often without a goodbye. So deaths count that were seen before the rank that saw them
// failed, or after it completed another operation, and those of ranks that had not failed.
std::vector<Loss> losses_in(const States& states);

}  // namespace fsccl::trace
