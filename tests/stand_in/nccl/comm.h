// A communicator of the stand-in: its state, what waits to be run on streams, and the rules that
// its user has to keep. A broken rule is an error of NCCL's kind, and a line for tests.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "region.h"

// NCCL's name for what a handle points to.
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
  double scale = 1;                                    // scale of a made operator
  int root = -1;                                       // or the peer
  bool fails = false, hangs = false, endless = false;  // endless: an abort does not end it
  uint64_t place = kNoPlace;
};

// The job of a non-blocking call, in NCCL before 2.27: it belongs to the thread until a call joins
// it.
struct Job {
  std::atomic<bool> joined{false};
};

struct Comm {
  std::shared_ptr<Region> region;
  int rank = 0, ranks = 1;
  bool blocking = true, zero_ctas = false;
  bool one_host = true;                  // by NCCL_HOSTID
  std::atomic<bool> stopped{false};      // aborted or revoked: what runs ends at once
  std::atomic<int> error{kSuccess};      // asynchronous
  std::atomic<int> job{kSuccess};        // kInProgress while something is done in the background
  std::atomic<int> endless{0};           // operations that run now and that nothing ends
  std::atomic<bool> settling{false};     // says once more that it is in progress
  std::atomic<uint64_t> collectives{0};  // run so far
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
  uint64_t place_of(const void* memory, size_t bytes) const;  // in the windows
  // It begins in a window and ends outside: NCCL looks at the first byte alone, and goes on behind
  // the window's end.
  bool leaves_window(const void* memory, size_t bytes) const;
};

int version();  // as ncclGetVersion says
size_t size_of(Type type);
const char* name_of(Operation::Kind kind);

// On a stream's thread. The operations of one group, on one communicator.
void run(Comm& comm, const std::vector<Operation>& operations);

// Counts a call; what is to be done to it (FSCCL_STAND_IN_NCCL_FAIL). `rank` -1: any.
enum class Fault { none, error, async, hang };
Fault called(const char* function, int rank);
// Notes a line, and returns kInvalidUsage.
Code broken(const std::string& line);
void set_last_error(const std::string& text);

}  // namespace fsccl::stand_in_nccl
