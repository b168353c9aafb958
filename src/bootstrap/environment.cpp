#include "bootstrap/environment.h"

#include <unistd.h>

#include <charconv>
#include <cstring>
#include <utility>

#include "bootstrap/credentials.h"
#include "bootstrap/registrar.h"

namespace fsccl {

namespace {

constexpr int64_t kNamePatienceMs = 2000;  // an earlier communicator of the same name may just be ending

struct Names {
  const char *rank, *ranks, *local_ranks;
};
constexpr Names kTorchrun = {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"};

std::string text_of(const ReadVariable& read, const char* name) {
  const char* const value = read(name);
  return value ? value : "";
}

Result<int32_t> number_of(const ReadVariable& read, const char* name, int32_t minimum, int32_t maximum) {
  const std::string text = text_of(read, name);
  if (text.empty()) return fail(FSCCL_ERR_CONFIG, "{} is not set, though other variables of a launcher are", name);
  int32_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size() || value < minimum || value > maximum)
    return fail(FSCCL_ERR_CONFIG, "{}={}: not a number from {} to {}", name, text, minimum, maximum);
  return value;
}

bool means_this_host(const std::string& address) {
  return address.empty() || address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

// A text that only the ranks of this job have. A restarted job of torchrun has the same address and run id.
std::string torch_job(const ReadVariable& read, const LaunchEnvironment& launch) {
  if (launch.master_address.empty()) return {};
  return fmt::format("torch {}:{} {} {}", launch.master_address, launch.master_port, text_of(read, "TORCHELASTIC_RUN_ID"),
                     text_of(read, "TORCHELASTIC_RESTART_COUNT"));
}

std::string open_mpi_job(const ReadVariable& read) {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_orte_local_daemon_uri"})
    if (const std::string text = text_of(read, name); !text.empty())
      return fmt::format("mpi {} {}", text, text_of(read, "OMPI_MCA_orte_ess_jobid"));
  return {};
}

std::string owner_of(const std::string& name) {
  const Result<Fd> fd = connect_to(unix_address(name), Deadline::in_ms(100));
  const Result<PeerUser> owner = fd.ok() ? peer_user(fd.value().get()) : Result<PeerUser>(fd.status().clone());
  return owner.ok() ? fmt::format("process {} of user {}", owner.value().pid, owner.value().uid) : "another process";
}

Result<Fd> patiently(const std::function<Result<Fd>()>& listen, Deadline deadline) {
  const Deadline patience = Deadline::at(std::min(deadline.at_ns(), Deadline::in_ms(kNamePatienceMs).at_ns()));
  Backoff backoff;
  for (;;) {
    Result<Fd> fd = listen();
    if (fd.ok() || fd.status().code() != FSCCL_ERR_INVALID_STATE || patience.passed()) return fd;
    backoff.sleep(patience);
  }
}

Result<Credentials> choose_credentials(const LaunchEnvironment& launch, const Config& settings) {
  Credentials credentials;
  if (!settings.job_secret_file.empty()) {
    credentials.mode = AuthMode::kSecret;
    FSCCL_ASSIGN(credentials.key, read_secret_file(settings.job_secret_file));
    return credentials;
  }
  credentials.mode = launch.one_host ? AuthMode::kUser : AuthMode::kNone;
  if (launch.one_host || settings.insecure) return credentials;
  return fail(FSCCL_ERR_AUTH,
              "the {} ranks are on several hosts and nothing proves that they belong together: set FSCCL_JOB_SECRET_FILE to a file "
              "with the same secret on every "
              "host (mode 0600), or use fsccl_unique_id_create(), or, on a closed network only, set FSCCL_INSECURE=1",
              launch.ranks);
}

uint64_t number_from(const std::string& text) {
  const Digest digest = fingerprint_text(text);
  uint64_t number = 0;
  std::memcpy(&number, digest.data(), sizeof(number));
  return number;
}

Result<std::vector<Fd>> listen_on_host(const std::string& name, const LaunchEnvironment& launch, Deadline deadline) {
  Result<Fd> listener = patiently([&] { return listen_unix(name); }, deadline);
  if (!listener.ok() && listener.status().code() == FSCCL_ERR_INVALID_STATE)
    return fail(FSCCL_ERR_CONFIG,
                "another job with the same name (\"{}\") runs on this host: {} holds @{}; give each job its own MASTER_PORT",
                launch.job, owner_of(name), name);
  if (!listener.ok()) return listener.take_status();
  std::vector<Fd> listeners;
  listeners.push_back(listener.take());
  return listeners;
}

Result<std::vector<Fd>> listen_between_hosts(uint16_t port, Deadline deadline) {
  Result<Fd> listener = patiently([&] { return listen_tcp(port); }, deadline);
  if (!listener.ok() && listener.status().code() == FSCCL_ERR_INVALID_STATE)
    return fail(FSCCL_ERR_CONFIG,
                "TCP port {} is in use on the host of rank 0: set FSCCL_BOOTSTRAP_PORT to a free one, the same on all ranks", port);
  if (!listener.ok()) return listener.take_status();
  std::vector<Fd> listeners;
  listeners.push_back(listener.take());
  return listeners;
}

Result<uint16_t> meeting_port(const LaunchEnvironment& launch, const Config& settings) {
  if (!settings.bootstrap_tcp)
    return fail(FSCCL_ERR_CONFIG,
                "FSCCL_BOOTSTRAP_TCP=0, but the launcher says that the {} ranks are on several hosts (LOCAL_WORLD_SIZE and "
                "WORLD_SIZE differ)",
                launch.ranks);
  if (launch.master_address.empty())
    return fail(
        FSCCL_ERR_CONFIG,
        "MASTER_ADDR is not set: the {} ranks are on several hosts and need the address of rank 0's (mpirun -x MASTER_ADDR=...)",
        launch.ranks);
  if (settings.bootstrap_port != 0) return static_cast<uint16_t>(settings.bootstrap_port);
  if (launch.master_port == 0 || launch.master_port == UINT16_MAX)
    return fail(FSCCL_ERR_CONFIG, "FSCCL_BOOTSTRAP_PORT is not set, and MASTER_PORT + 1, its default, is not a port");
  return static_cast<uint16_t>(launch.master_port + 1);
}

}  // namespace

Result<LaunchEnvironment> read_environment(const ReadVariable& read) {
  const bool torch = !text_of(read, kTorchrun.rank).empty() || !text_of(read, kTorchrun.ranks).empty();
  const bool open_mpi = !torch && !text_of(read, kOpenMpi.rank).empty();
  if (!torch && !open_mpi)
    return fail(FSCCL_ERR_CONFIG,
                "no launcher is known here: run under torchrun or Open MPI's mpirun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
                "MASTER_PORT, or "
                "pass a unique id");
  const Names& names = torch ? kTorchrun : kOpenMpi;
  LaunchEnvironment launch;
  FSCCL_ASSIGN(launch.ranks, number_of(read, names.ranks, 1, kMaxRanks));
  FSCCL_ASSIGN(launch.rank, number_of(read, names.rank, 0, launch.ranks - 1));
  launch.master_address = text_of(read, "MASTER_ADDR");
  if (!text_of(read, "MASTER_PORT").empty()) {
    FSCCL_ASSIGN(const int32_t port, number_of(read, "MASTER_PORT", 1, 65535));
    launch.master_port = static_cast<uint16_t>(port);
  }
  int32_t local_ranks = means_this_host(launch.master_address) ? launch.ranks : 0;
  if (!text_of(read, names.local_ranks).empty()) {
    FSCCL_ASSIGN(local_ranks, number_of(read, names.local_ranks, 1, launch.ranks));
  }
  launch.one_host = local_ranks == launch.ranks;
  launch.job = torch ? torch_job(read, launch) : open_mpi_job(read);
  if (launch.job.empty() && launch.ranks > 1)
    return fail(FSCCL_ERR_CONFIG, "{}: no variable names the job; {}",
                torch ? "MASTER_ADDR is not set" : "neither PMIX_NAMESPACE nor OMPI_MCA_orte_hnp_uri is set",
                torch ? "set MASTER_ADDR and MASTER_PORT alike on all ranks (127.0.0.1 and any number on one host)"
                      : "is this Open MPI 3 or newer?");
  return launch;
}

Result<MeetingPlace> meet_from_environment(const LaunchEnvironment& launch, const Config& settings, uint64_t instance,
                                           Deadline deadline) {
  const std::string name = fmt::format("{} #{}", launch.job, instance);
  MeetingPlace place;
  FSCCL_ASSIGN(place.credentials, choose_credentials(launch, settings));
  place.meeting = number_from(name);
  place.host_id = settings.host_id;
  std::vector<Fd> listeners;
  if (launch.one_host) {
    ListenerName digits;
    const Digest digest = fingerprint_text(fmt::format("{} user {}", name, geteuid()));
    std::memcpy(digits.data(), digest.data(), digits.size());
    const std::string listener = listener_name(digits);
    place.addresses.push_back(unix_address(listener));
    place.who_listens = "rank 0, on the same host,";
    if (launch.rank == 0) {
      FSCCL_ASSIGN(listeners, listen_on_host(listener, launch, deadline));
    }
  } else {
    FSCCL_ASSIGN(const uint16_t port, meeting_port(launch, settings));
    FSCCL_ASSIGN(place.addresses, resolve(launch.master_address, port));
    place.tcp = true;
    place.who_listens = fmt::format("rank 0 at MASTER_ADDR={} port {}", launch.master_address, port);
    if (launch.rank == 0) {
      FSCCL_ASSIGN(listeners, listen_between_hosts(port, deadline));
    }
  }
  if (launch.rank == 0) FSCCL_TRY(Registrar::open(place.credentials, place.meeting, random_number(), std::move(listeners)));
  return place;
}

}  // namespace fsccl
