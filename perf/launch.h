// How the ranks of a measurement start. With `--ranks N` this program starts itself N times and
// waits. Rank 0 makes the unique id and hands it to the others over an inherited pipe, because the
// id carries a secret (other users can read arguments and the environment). Without `--ranks` this
// process is one rank of a launcher's job (docs/clusters.md) if a launcher's variables are set;
// otherwise it starts two local ranks. No rank outlives the process that started it.
#pragma once
#include <fsccl/fsccl.h>

#include <string>

namespace fsccl::perf {

// A rank's place among the ranks that launch_local() has started. It is passed as an argument
// ("rank:ranks:descriptor"), and holds no secret.
struct LocalRank {
  int rank = -1;
  int ranks = 0;
  int pipe = -1;
};
bool parse_local_rank(const std::string& text, LocalRank* place);

// kAuto binds rank r to the r-th core that this process may use, if there is one for each rank: two
// ranks on one core take turns, which is slow.
enum class Binding { kAuto, kCore, kNone };

// Returns true if a launcher's variables are set, even if they contradict each other: making the
// communicator then says what is wrong.
bool in_launcher_environment();

// Starts `ranks` copies of this program with its own arguments and waits for them. Returns 0, or
// the exit status of the first rank that failed.
int launch_local(int ranks, Binding binding, int argc, char** argv);

// Makes the unique id and sends it (rank 0), or receives it. Returns false, after a message on
// stderr, if the id could not be made or the other end of the pipe is gone.
bool exchange_unique_id(const LocalRank& place, fsccl_unique_id_t* id);

}  // namespace fsccl::perf
