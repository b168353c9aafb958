// The launcher of this process: which rank it is of how many, and on how many hosts. The variables
// of torchrun, Open MPI, MPICH, PMIx and Slurm say it, or RANK and WORLD_SIZE that somebody set by
// hand. docs/clusters.md lists the variables.
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

// Where variables of several are set, the first of this list is the one that has started this
// process, and the others have started it: torchrun runs below srun, mpirun in a job of Slurm;
// nobody does it the other way round. RANK and WORLD_SIZE alone do not show that torchrun was
// there: a container may have them for its first process. So they have to agree with the launcher
// below, unless FSCCL_LAUNCHER says which counts.
enum class Launcher { kTorchrun, kOpenMpi, kPmi, kPmix, kSlurm, kNone };

struct LaunchEnvironment {
  Launcher launcher = Launcher::kNone;
  int32_t rank = -1;
  int32_t ranks = 0;
  int32_t local_rank = -1;  // among those of this host; -1: unknown
  int32_t local_ranks = 0;  // number of ranks of this host; 0: unknown
  // the launcher says so, or nobody does and MASTER_ADDR is localhost
  bool one_host = false;
  bool hosts_unknown = false;    // no variable says which ranks share a host
  std::string local_ranks_said;  // the variable that does, with its value: "LOCAL_WORLD_SIZE=4"
  // the same text on all ranks, another for every job of the user that runs at the same time
  std::string job;
  std::string master_address;  // address of rank 0's host, if known
  // on that host; occupied by others: only a base for the default of FSCCL_BOOTSTRAP_PORT
  uint16_t master_port = 0;
};

// `choice`: FSCCL_LAUNCHER.
Launcher find_launcher(const ReadVariable& read, LauncherChoice choice = LauncherChoice::kAuto);
const char* name_of(Launcher launcher);

// FSCCL_ERR_CONFIG names the variable that is missing or wrong.
Result<LaunchEnvironment> read_environment(const ReadVariable& read, LauncherChoice choice,
                                           const AskPmix& ask = ask_pmix);

}  // namespace fsccl
