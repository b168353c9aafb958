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
  // "goes_on"; others are a newer library's
  std::string kind;
  int communicator = 0;
  int peer = -1;
  uint64_t sequence = 0;
  std::string operation;  // empty: none
  uint64_t count = 0;
  std::string dtype;
  int64_t silent_ms = 0;  // "suspect", "alive"
  bool stopped = false;
  // "waits", and "blocked" where that is not to signal: what the peer has to do
  std::string duty;
  uint64_t freed_by = 0;  // "blocked": the operation that frees the slot; 0: none is known
};

struct RecordedCommunicator {
  std::string tag, name;
  int rank = 0, size = 0;
  bool lives = true;
  int error_code = 0;
  std::string error;
};

struct Recording {
  std::string file, job, host;
  int rank = 0, ranks = 0, pid = 0;
  int64_t last_look_ns = 0;
  uint64_t overwritten = 0;
  std::map<int, RecordedCommunicator> communicators;  // by the number that events name
  std::vector<Event> events;                          // in order
};

// Reads a folder's *.ring files, by rank. If there are several jobs, the one that was active last
// is read; `other_jobs` counts the others. An error is a text, and then nothing is returned.
std::vector<Recording> read_recordings(const std::string& folder, int* other_jobs,
                                       std::string* error);

// "all_gather of 16 float32 (operation 12)"
std::string describe(const Event& event);

}  // namespace fsccl::trace
