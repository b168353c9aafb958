// The launcher of this process and its job: the rank of the process, the number of ranks, and
// whether they share a host. The source is the variables of torchrun, Open MPI, MPICH, PMIx or
// Slurm, or RANK and WORLD_SIZE that somebody has set by hand. docs/clusters.md lists them.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/config.h"
#include "base/status.h"
#include "bootstrap/pmix_library.h"

namespace fsccl {

using ReadVariable = std::function<const char*(const char* name)>;
using AskPmix = std::function<Result<PmixJob>()>;

// If the variables of several launchers are set, the first launcher of this list has started this
// process, and the others have started that launcher: torchrun runs below srun, and mpirun in a job
// of Slurm, but not the other way round. RANK and WORLD_SIZE alone do not show that torchrun has
// run, because a container may set them for its first process. So they have to agree with the
// variables of the other launcher, unless FSCCL_LAUNCHER says which launcher counts.
enum class Launcher { kTorchrun, kOpenMpi, kPmi, kPmix, kSlurm, kNone };

struct LaunchEnvironment {
  Launcher launcher = Launcher::kNone;
  int32_t rank = -1;
  int32_t ranks = 0;
  int32_t local_rank = -1;  // the rank among the ranks of this host; -1: unknown
  int32_t local_ranks = 0;  // number of ranks of this host; 0: unknown
  // All ranks share one host: the launcher says so, or no variable says which ranks share a host
  // and MASTER_ADDR is localhost.
  bool one_host = false;
  bool hosts_unknown = false;    // no variable says which ranks share a host
  std::string local_ranks_said;  // the variable that does, with its value: "LOCAL_WORLD_SIZE=4"
  // The name of the job: the same text on all ranks, and different texts for the jobs of the user
  // that run at the same time.
  std::string job;
  std::string master_address;  // address of rank 0's host, if known
  // A port of that host which another program may hold. It is only the base of the default of
  // FSCCL_BOOTSTRAP_PORT.
  uint16_t master_port = 0;
};

// Returns the launcher that counts. `choice` is the setting FSCCL_LAUNCHER.
Launcher find_launcher(const ReadVariable& read, LauncherChoice choice = LauncherChoice::kAuto);
const char* name_of(Launcher launcher);

// Reads what the launcher says. Fails with FSCCL_ERR_CONFIG if a variable is missing or wrong; the
// error names it.
Result<LaunchEnvironment> read_environment(const ReadVariable& read, LauncherChoice choice,
                                           const AskPmix& ask = ask_pmix);

}  // namespace fsccl
