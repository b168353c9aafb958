// A communicator of the stand-in: its state, the operations that streams run, and the rules that
// its user must keep. A call that breaks a rule gets NCCL's error, and adds a line to a list for
// tests.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "region.h"

// The type to which NCCL's handles point.
struct ncclComm;

namespace fsccl::stand_in_nccl {

struct Operation {
  enum class Kind {
    all_gather,
    reduce_scatter,
    all_reduce,
    reduce,
    broadcast,
    all_to_all,
    send,
    recv
  };
  Kind kind{};
  const char* send = nullptr;
  char* recv = nullptr;
  size_t count = 0;
  Type type{};
  int operation_kind = 0;
  double scale = 1;                                    // scale of an operator that was made
  int root = -1;                                       // in messages the peer
  bool fails = false, hangs = false, endless = false;  // endless: an abort does not end it
  uint64_t place = kNoPlace;
};

// The job of a non-blocking call. In NCCL before 2.27 it belongs to the thread until a call joins
// it.
struct Job {
  std::atomic<bool> joined{false};
};

struct Comm {
  std::shared_ptr<Region> region;
  int rank = 0, ranks = 1;
  bool blocking = true, zero_ctas = false;
  bool one_host = true;                  // all ranks have the same NCCL_HOSTID
  std::atomic<bool> stopped{false};      // aborted or revoked, so running operations end at once
  std::atomic<int> error{kSuccess};      // the asynchronous error
  std::atomic<int> job{kSuccess};        // kInProgress while something is done in the background
  std::atomic<int> endless{0};           // the operations that run now and that nothing ends
  std::atomic<bool> settling{false};     // reports once more that it is in progress
  std::atomic<uint64_t> collectives{0};  // the number of collectives that have run
  uint64_t meetings = 0;
  std::shared_ptr<Job> group_job;
  std::map<int, std::pair<double, Type>> operators;
  int next_operator = kMade;
  struct Window {
    const char* base;
    size_t bytes;
  };
  std::vector<Window> windows;
  std::vector<std::thread> threads;

  bool over() const { return stopped || region->broken; }
  // Exchanges every rank's value, once all have come. Returns false if the communicator was stopped
  // first.
  bool meet(uint64_t value, std::vector<uint64_t>* all);
  uint64_t place_of(const void* memory, size_t bytes) const;  // its offset in the windows
  // Returns true if the memory begins in a window and ends outside. NCCL looks at the first byte
  // only, and would go on behind the window's end.
  bool leaves_window(const void* memory, size_t bytes) const;
};

int version();  // the version that ncclGetVersion() returns
size_t size_of(Type type);
const char* name_of(Operation::Kind kind);

// Runs the operations of one group on one communicator, in the thread of their stream.
void run(Comm& comm, const std::vector<Operation>& operations);

// Counts a call, and returns the fault that FSCCL_STAND_IN_NCCL_FAIL wants for it. `rank` is -1 if
// the call has no rank.
enum class Fault { none, error, async, hang };
Fault called(const char* function, int rank);
// Adds a line to the broken rules, and returns kInvalidUsage.
Code broken(const std::string& line);
void set_last_error(const std::string& text);

}  // namespace fsccl::stand_in_nccl
