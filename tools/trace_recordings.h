// Reads the last events of the ranks of a job from the files of their flight recorders
// (fsccl_trace_read).
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fsccl::trace {

struct Event {
  int64_t at_ns = 0;  // since 1970
  // "submitted", "completed", "blocked", "failed", "lost", "left", "suspect", "alive", "waits",
  // "goes_on"; a newer library may write others
  std::string kind;
  int communicator = 0;
  int peer = -1;
  uint64_t sequence = 0;
  std::string operation;  // empty if there is none
  uint64_t count = 0;
  std::string dtype;
  int64_t silent_ms = 0;  // in "suspect" and "alive"
  bool stopped = false;
  // in "waits", and in "blocked" unless the peer has to signal: what the peer has to do
  std::string duty;
  uint64_t freed_by = 0;  // in "blocked": the operation that frees the slot, or 0
};

struct RecordedCommunicator {
  std::string tag, name;
  int rank = 0, size = 0;
  bool lives = true;
  int64_t since_ns = 0;  // when it was made
  int error_code = 0;
  std::string error;
};

struct Recording {
  std::string file, job, host;
  int rank = 0, ranks = 0, pid = 0;
  int64_t last_look_ns = 0;
  uint64_t overwritten = 0;
  std::map<int, RecordedCommunicator> communicators;  // by the number that events name
  std::vector<Event> events;                          // in the order of time
};

// Reads the *.ring files of a folder, sorted by rank. If there are several jobs, the one that was
// active last is returned, and `other_jobs` counts the others. `unreadable` gets a sentence for
// each file that is no recording, or only a part of one. If no recording is left, nothing is
// returned, and *error says why.
std::vector<Recording> read_recordings(const std::string& folder, int* other_jobs,
                                       std::vector<std::string>* unreadable, std::string* error);

// Describes an operation as in "all_gather of 16 float32 (operation 12)".
std::string describe(const Event& event);

}  // namespace fsccl::trace
