#include "bootstrap/launcher.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/ascii.h"
#include "base/socket.h"
#include "bootstrap/hostlist.h"
#include "bootstrap/member_info.h"
#include "wire/authentication.h"
#include "wire/messages.h"

namespace fsccl {

namespace {

// If nobody has chosen a port, a job gets one of these. They lie below the ports that systems hand
// out by themselves (32768 and up on Linux).
constexpr uint16_t kFirstPort = 10000, kPorts = 20000;

struct Names {
  const char *rank, *ranks, *local_rank, *local_ranks;
};
// Returns the name that FSCCL_LAUNCHER has for a launcher.
const char* word_of(Launcher launcher) {
  static constexpr const char* kWords[] = {"torchrun", "open-mpi", "mpich",
                                           "pmix",     "slurm",    "auto"};
  return kWords[static_cast<size_t>(launcher)];
}

constexpr Names kTorchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Names kSlurm = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""};

std::string text_of(const ReadVariable& read, const char* name) {
  const char* const value = *name ? read(name) : nullptr;
  return value ? value : "";
}

bool is_set(const ReadVariable& read, const char* name) { return !text_of(read, name).empty(); }

Result<int32_t> number_of(const ReadVariable& read, const char* name, int32_t minimum,
                          int32_t maximum) {
  const std::string text = text_of(read, name);
  if (text.empty())
    return fail(
        FSCCL_ERR_CONFIG,
        "{} is not set, though other variables of its launcher are, or FSCCL_LAUNCHER names it",
        name);
  int32_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size() || value < minimum ||
      value > maximum)
    return fail(FSCCL_ERR_CONFIG, "{}={}: not a number from {} to {}", name, text, minimum,
                maximum);
  return value;
}

// Returns true if `address` means this host, as far as that can be told without looking up names.
// The address that stands for all addresses of a host, such as 0.0.0.0, means this host, too.
bool means_this_host(std::string address) {
  if (address.size() > 2 && address.front() == '[' && address.back() == ']')
    address = address.substr(1, address.size() - 2);
  if (address.ends_with('.')) address.pop_back();
  if (address.empty() || ascii::equal_ignoring_case(address, "localhost")) return true;
  IpAddress ip = {};
  in_addr ip4 = {};
  if (inet_aton(address.c_str(), &ip4) != 0)
    return ip4.s_addr == INADDR_ANY || ntohl(ip4.s_addr) >> 24 == IN_LOOPBACKNET;
  return inet_pton(AF_INET6, address.c_str(), ip.data()) == 1 &&
         (ip == IpAddress{} || is_loopback(ip));
}

Status read_place(const ReadVariable& read, const Names& names, LaunchEnvironment* launch) {
  FSCCL_ASSIGN(launch->ranks, number_of(read, names.ranks, 1, kMaxRanks));
  FSCCL_ASSIGN(launch->rank, number_of(read, names.rank, 0, launch->ranks - 1));
  if (is_set(read, names.local_ranks)) {
    FSCCL_ASSIGN(launch->local_ranks, number_of(read, names.local_ranks, 1, kMaxRanks));
    launch->local_ranks_said = fmt::format("{}={}", names.local_ranks, launch->local_ranks);
    if (launch->local_ranks > launch->ranks)
      return fail(FSCCL_ERR_CONFIG, "{}, but {}={}: a host has no more ranks than the job",
                  launch->local_ranks_said, names.ranks, launch->ranks);
  }
  if (is_set(read, names.local_rank)) {
    FSCCL_ASSIGN(launch->local_rank, number_of(read, names.local_rank, 0, launch->ranks - 1));
  }
  return success();
}

// The name of a job of torchrun contains the number of restarts, because a restarted job has the
// same address and run id.
Status read_torchrun(const ReadVariable& read, LaunchEnvironment* launch) {
  FSCCL_TRY(read_place(read, kTorchrun, launch));
  launch->hosts_unknown = launch->local_ranks == 0;
  if (launch->hosts_unknown && means_this_host(launch->master_address))
    launch->local_ranks = launch->ranks;
  launch->one_host = launch->local_ranks == launch->ranks;
  if (launch->master_address.empty() && launch->ranks > 1)
    return fail(FSCCL_ERR_CONFIG,
                "MASTER_ADDR is not set: no variable names the job; set MASTER_ADDR and "
                "MASTER_PORT alike on all ranks (127.0.0.1 and "
                "any number on one host)");
  // The name does not contain MASTER_ADDR, because ranks may spell it in different ways.
  launch->job =
      fmt::format("torch {} {} {}", launch->master_port, text_of(read, "TORCHELASTIC_RUN_ID"),
                  text_of(read, "TORCHELASTIC_RESTART_COUNT"));
  return success();
}

Status read_open_mpi(const ReadVariable& read, LaunchEnvironment* launch) {
  FSCCL_TRY(read_place(read, kOpenMpi, launch));
  launch->one_host = launch->local_ranks == launch->ranks;
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri",
                           "OMPI_MCA_orte_local_daemon_uri"}) {
    if (!is_set(read, name)) continue;
    launch->job =
        fmt::format("mpi {} {}", text_of(read, name), text_of(read, "OMPI_MCA_orte_ess_jobid"));
    return success();
  }
  return fail(FSCCL_ERR_CONFIG,
              "neither PMIX_NAMESPACE nor OMPI_MCA_orte_hnp_uri is set: no variable names the job; "
              "is this Open MPI 3 or newer?");
}

// Returns which process is the process manager of this host, or nothing if that is unknown. No
// variable of MPICH names the job, but each rank holds a socket that the process manager of its
// host has made for it, and the kernel knows which process that was.
std::string manager_of(const ReadVariable& read) {
  const Result<int32_t> fd = number_of(read, "PMI_FD", 0, INT32_MAX);
  if (!fd.ok()) return {};
  const Result<PeerUser> manager = peer_user(fd.value());
  if (!manager.ok() || manager.value().pid <= 0)
    return {};  // the socket is closed, or the manager is in a namespace that is not visible
  return fmt::format("process {} started at {}", manager.value().pid,
                     start_time_of(manager.value().pid));
}

Status read_pmi(const ReadVariable& read, LaunchEnvironment* launch) {
  FSCCL_TRY(read_place(read, kPmi, launch));
  if (launch->local_ranks == 0 && launch->master_address.empty())
    return fail(FSCCL_ERR_CONFIG,
                "MPI_LOCALNRANKS is not set, so it is not known which ranks share a host: set "
                "MASTER_ADDR, 127.0.0.1 if all do");
  launch->hosts_unknown = launch->local_ranks == 0;
  launch->one_host = launch->hosts_unknown ? means_this_host(launch->master_address)
                                           : launch->local_ranks == launch->ranks;
  const std::string manager = launch->one_host ? manager_of(read) : "";
  if (!manager.empty())
    launch->job = "pmi " + manager;
  else if (!launch->master_address.empty() && launch->master_port != 0)
    launch->job = fmt::format("pmi {}", launch->master_port);
  else
    return fail(FSCCL_ERR_CONFIG,
                "no variable names the job{}: set MASTER_ADDR and MASTER_PORT alike on all ranks "
                "(mpiexec -genv MASTER_ADDR ... -genv "
                "MASTER_PORT ...)",
                launch->one_host ? " and PMI_FD is no socket of the process manager (is it closed?)"
                                 : " on several hosts");
  return success();
}

Status read_pmix(const ReadVariable& read, const AskPmix& ask, LaunchEnvironment* launch) {
  const Result<PmixJob> answer = ask();
  if (!answer.ok())
    return fail(FSCCL_ERR_CONFIG,
                "PMIX_RANK is set, but only the PMIx library knows how many ranks there are, and "
                "asking it failed ({}): install "
                "libpmix.so.2, "
                "or let LD_LIBRARY_PATH name its folder, or set RANK, WORLD_SIZE, MASTER_ADDR and "
                "MASTER_PORT",
                answer.status().text());
  const PmixJob& job = answer.value();
  if (job.ranks < 1 || job.ranks > kMaxRanks || job.local_ranks < 1 ||
      job.local_ranks > job.ranks || job.local_rank >= job.ranks)
    return fail(
        FSCCL_ERR_CONFIG,
        "PMIx says that rank {} of {} on this host belongs to a job of {}; accepted are 1 to {}",
        job.local_rank, job.local_ranks, job.ranks, kMaxRanks);
  launch->ranks = static_cast<int32_t>(job.ranks);
  launch->local_ranks = static_cast<int32_t>(job.local_ranks);
  launch->local_rank = job.local_rank;
  FSCCL_ASSIGN(launch->rank, number_of(read, "PMIX_RANK", 0, launch->ranks - 1));
  launch->one_host = launch->local_ranks == launch->ranks;
  launch->job = "pmix " + text_of(read, "PMIX_NAMESPACE");
  if (!launch->one_host && launch->master_address.empty()) launch->master_address = job.first_host;
  return success();
}

Status read_slurm(const ReadVariable& read, LaunchEnvironment* launch) {
  FSCCL_TRY(read_place(read, kSlurm, launch));
  FSCCL_ASSIGN(const int32_t hosts, number_of(read, "SLURM_STEP_NUM_NODES", 1, launch->ranks));
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID"})
    if (!is_set(read, name))
      return fail(FSCCL_ERR_CONFIG, "{} is not set, though other variables of Slurm are", name);
  launch->one_host = hosts == 1;
  launch->job = fmt::format("slurm {} {}.{} {}", text_of(read, "SLURM_CLUSTER_NAME"),
                            text_of(read, "SLURM_JOB_ID"), text_of(read, "SLURM_STEP_ID"),
                            text_of(read, "SLURM_RESTART_COUNT"));
  launch->local_ranks = launch->one_host ? launch->ranks : 0;
  if (!launch->one_host && is_set(read, "SLURM_STEP_TASKS_PER_NODE")) {
    FSCCL_ASSIGN(const int32_t host, number_of(read, "SLURM_NODEID", 0, hosts - 1));
    Result<int32_t> tasks = count_of_node(text_of(read, "SLURM_STEP_TASKS_PER_NODE"), host);
    if (!tasks.ok())
      return fail(FSCCL_ERR_CONFIG, "SLURM_STEP_TASKS_PER_NODE={}", tasks.status().text());
    launch->local_ranks = tasks.take();
  }
  if (launch->one_host || !launch->master_address.empty()) return success();
  const Result<std::vector<std::string>> names = expand_hosts(text_of(read, "SLURM_STEP_NODELIST"));
  if (!names.ok())
    return fail(FSCCL_ERR_CONFIG,
                "SLURM_STEP_NODELIST={}; set MASTER_ADDR to the address of rank 0's host",
                names.status().text());
  launch->master_address = names.value().front();  // Slurm numbers tasks from the first host on
  return success();
}

// The PMI and PMIx plugins of Slurm set the variables that mpiexec and prterun set. The name of the
// job tells them apart.
bool is_pmi(const ReadVariable& read) {
  const std::string slurm = text_of(read, "SLURM_JOB_ID") + '.' + text_of(read, "SLURM_STEP_ID");
  return is_set(read, kPmi.rank) && is_set(read, kPmi.ranks) && text_of(read, "PMI_JOBID") != slurm;
}
bool is_pmix(const ReadVariable& read) {
  const std::string job = text_of(read, "PMIX_NAMESPACE");
  return is_set(read, "PMIX_RANK") && !job.empty() && job.rfind("slurm.pmix.", 0) != 0;
}

Status no_launcher(const ReadVariable& read) {
  if (is_set(read, "SLURM_JOB_ID"))
    return fail(FSCCL_ERR_CONFIG,
                "this process belongs to Slurm's job {}, but is no task of srun's: start the ranks "
                "with srun, mpirun or torchrun",
                text_of(read, "SLURM_JOB_ID"));
  return fail(FSCCL_ERR_CONFIG,
              "no launcher is known here: run under torchrun, mpirun, mpiexec or srun, or set "
              "RANK, WORLD_SIZE, MASTER_ADDR and "
              "MASTER_PORT, or pass a unique id");
}

uint16_t port_of_job(const std::string& job) {
  const Digest digest = fingerprint_text(job);
  uint16_t number = 0;
  std::memcpy(&number, digest.data(), sizeof(number));
  return static_cast<uint16_t>(kFirstPort + number % kPorts);
}

// Fills in the values that torchrun would have set, so that a caller of fsccl_launcher() can set
// torchrun's variables from what this library sees.
void complete(LaunchEnvironment* launch) {
  if (launch->one_host) launch->local_ranks = launch->ranks;
  if (launch->one_host && launch->local_rank < 0) launch->local_rank = launch->rank;
  if (launch->one_host && launch->master_address.empty()) launch->master_address = "127.0.0.1";
  if (launch->launcher != Launcher::kTorchrun && launch->master_port == 0)
    launch->master_port = port_of_job(launch->job);
}

// Returns the launcher, other than torchrun, whose variables this process has.
Launcher other_launcher(const ReadVariable& read) {
  if (is_set(read, kOpenMpi.rank)) return Launcher::kOpenMpi;
  if (is_pmi(read)) return Launcher::kPmi;
  if (is_pmix(read)) return Launcher::kPmix;
  return is_set(read, kSlurm.ranks) ? Launcher::kSlurm : Launcher::kNone;
}

bool of_torchrun(const ReadVariable& read) {
  for (const char* name :
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"})
    if (is_set(read, name)) return true;
  return false;
}

// The place that a launcher other than torchrun has given to this process. `ranks` is 0 if the PMIx
// library cannot tell it.
struct LaunchedRank {
  int32_t rank = 0, ranks = 0;
  std::string said;  // the variables that say so, for messages
};

Result<LaunchedRank> place_by(Launcher launcher, const ReadVariable& read, const AskPmix& ask) {
  LaunchedRank place;
  if (launcher == Launcher::kPmix) {
    FSCCL_ASSIGN(place.rank, number_of(read, "PMIX_RANK", 0, kMaxRanks - 1));
    const Result<PmixJob> answer = ask();
    if (answer.ok())
      place.ranks = static_cast<int32_t>(std::min<uint32_t>(answer.value().ranks, kMaxRanks));
    place.said = fmt::format("PMIX_RANK={}", place.rank);
    return place;
  }
  const Names& names = launcher == Launcher::kOpenMpi ? kOpenMpi
                       : launcher == Launcher::kPmi   ? kPmi
                                                      : kSlurm;
  FSCCL_ASSIGN(place.ranks, number_of(read, names.ranks, 1, kMaxRanks));
  FSCCL_ASSIGN(place.rank, number_of(read, names.rank, 0, place.ranks - 1));
  place.said = fmt::format("{}={}, {}={}", names.rank, place.rank, names.ranks, place.ranks);
  return place;
}

// Checks that RANK and WORLD_SIZE, if they are set and not by torchrun, agree with the launcher of
// this process. A launcher that has started a single process is no contradiction to RANK, because
// that process may be a shell, or may start the ranks itself.
Status check_by_hand(const ReadVariable& read, const AskPmix& ask) {
  const Launcher launcher = other_launcher(read);
  const bool rank_set = is_set(read, kTorchrun.rank), ranks_set = is_set(read, kTorchrun.ranks);
  if (launcher == Launcher::kNone || of_torchrun(read) || (!rank_set && !ranks_set))
    return success();
  LaunchedRank place;
  FSCCL_ASSIGN(place, place_by(launcher, read, ask));
  if (rank_set && place.ranks == 1) return success();
  int32_t rank = place.rank, ranks = place.ranks;
  if (rank_set) {
    FSCCL_ASSIGN(rank, number_of(read, kTorchrun.rank, 0, kMaxRanks - 1));
  }
  if (ranks_set) {
    FSCCL_ASSIGN(ranks, number_of(read, kTorchrun.ranks, 1, kMaxRanks));
  }
  if (rank == place.rank && (ranks == place.ranks || place.ranks == 0)) return success();
  const std::string by_hand = fmt::format("{}{}{}", rank_set ? fmt::format("RANK={}", rank) : "",
                                          rank_set && ranks_set ? ", " : "",
                                          ranks_set ? fmt::format("WORLD_SIZE={}", ranks) : "");
  return fail(FSCCL_ERR_CONFIG,
              "{}, but {} has started {} ranks, this process as rank {} ({}), and torchrun has set "
              "neither (no TORCHELASTIC_RUN_ID): "
              "unset RANK and WORLD_SIZE, or say which counts: FSCCL_LAUNCHER={} or "
              "FSCCL_LAUNCHER=torchrun",
              by_hand, name_of(launcher),
              place.ranks == 0 ? std::string("the") : std::to_string(place.ranks), place.rank,
              place.said, word_of(launcher));
}

Launcher launcher_of(LauncherChoice choice) {
  switch (choice) {
    case LauncherChoice::kTorchrun:
      return Launcher::kTorchrun;
    case LauncherChoice::kOpenMpi:
      return Launcher::kOpenMpi;
    case LauncherChoice::kMpich:
      return Launcher::kPmi;
    case LauncherChoice::kPmix:
      return Launcher::kPmix;
    case LauncherChoice::kSlurm:
      return Launcher::kSlurm;
    case LauncherChoice::kAuto:
      break;
  }
  return Launcher::kNone;
}

}  // namespace

Launcher find_launcher(const ReadVariable& read, LauncherChoice choice) {
  if (choice != LauncherChoice::kAuto) return launcher_of(choice);
  const Launcher other = other_launcher(read);
  const bool rank_set = is_set(read, kTorchrun.rank), ranks_set = is_set(read, kTorchrun.ranks);
  const bool torchrun = other == Launcher::kNone ? rank_set || ranks_set
                                                 : rank_set && (ranks_set || of_torchrun(read));
  return torchrun ? Launcher::kTorchrun : other;
}

const char* name_of(Launcher launcher) {
  static constexpr const char* kNames[] = {"torchrun", "Open MPI", "MPICH",
                                           "PMIx",     "Slurm",    "no launcher"};
  return kNames[static_cast<size_t>(launcher)];
}

Result<LaunchEnvironment> read_environment(const ReadVariable& read, LauncherChoice choice,
                                           const AskPmix& ask) {
  LaunchEnvironment launch;
  launch.launcher = find_launcher(read, choice);
  if (choice == LauncherChoice::kAuto) FSCCL_TRY(check_by_hand(read, ask));
  launch.master_address = text_of(read, "MASTER_ADDR");
  if (is_set(read, "MASTER_PORT")) {
    FSCCL_ASSIGN(const int32_t port, number_of(read, "MASTER_PORT", 1, UINT16_MAX));
    launch.master_port = static_cast<uint16_t>(port);
  }
  const auto read_launcher = [&]() -> Status {
    switch (launch.launcher) {
      case Launcher::kTorchrun:
        return read_torchrun(read, &launch);
      case Launcher::kOpenMpi:
        return read_open_mpi(read, &launch);
      case Launcher::kPmi:
        return read_pmi(read, &launch);
      case Launcher::kPmix:
        return read_pmix(read, ask, &launch);
      case Launcher::kSlurm:
        return read_slurm(read, &launch);
      case Launcher::kNone:
        break;
    }
    return no_launcher(read);
  };
  FSCCL_TRY(read_launcher());
  complete(&launch);
  return launch;
}

}  // namespace fsccl
