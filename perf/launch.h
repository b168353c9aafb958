// How the ranks of a measurement come to be. `--ranks N`: this program starts itself N times and
// waits; rank 0 makes the unique id and hands it to the others over an inherited pipe, because it
// carries a secret (arguments and the environment can be read by others). Otherwise this process is
// one rank of a launcher's (docs/clusters.md) and finds its place in the environment. No rank
// outlives the process that started it.
#pragma once
#include <fsccl/fsccl.h>

#include <string>

namespace fsccl::perf {

// A rank's place among the ranks that launch_local() started; `text` travels as an argument
// ("rank:ranks:descriptor") and holds no secret.
struct LocalRank {
  int rank = -1;
  int ranks = 0;
  int pipe = -1;
};
bool parse_local_rank(const std::string& text, LocalRank* place);

// kAuto binds rank r to the r-th core that this process may use, if there is one for each rank: two
// ranks on one core take turns, which is slow.
enum class Binding { kAuto, kCore, kNone };

// True when a launcher's variables are set, also when they contradict each other: making the
// communicator says what is wrong.
bool in_launcher_environment();

// Starts `ranks` copies of this program with its own arguments and waits for them. Returns the exit
// status: 0, or of the first rank that failed.
int launch_local(int ranks, Binding binding, int argc, char** argv);

// Makes or receives the unique id. False with a message on stderr when rank 0 went away.
bool exchange_unique_id(const LocalRank& place, fsccl_unique_id_t* id);

}  // namespace fsccl::perf
