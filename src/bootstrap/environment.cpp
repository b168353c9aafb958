#include "bootstrap/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/descriptors.h"
#include "base/log.h"
#include "base/threads.h"
#include "bootstrap/credentials.h"
#include "bootstrap/rendezvous_server.h"

namespace fsccl {

namespace {

// Descriptors that a refusal takes: those of the service thread, and of ranks that come.
constexpr int kRefusalDescriptors = 6;
constexpr int64_t kRefusalMs = 1000;  // ranks that come a little later see the refusal, too
// The time for which a name or port that is in use is tried again: an earlier communicator of the
// same name may just be ending.
constexpr int64_t kNamePatienceMs = 2000;

std::string owner_of(const std::string& name) {
  const Result<Fd> fd = connect_to(unix_address(name), Deadline::in_ms(100));
  const Result<PeerUser> owner =
      fd.ok() ? peer_user(fd.value().get()) : Result<PeerUser>(fd.status().clone());
  return owner.ok() ? fmt::format("process {} of user {}", owner.value().pid, owner.value().uid)
                    : "another process";
}

Result<Fd> patiently(const std::function<Result<Fd>()>& listen, Deadline deadline) {
  const Deadline patience =
      Deadline::at(std::min(deadline.at_ns(), Deadline::in_ms(kNamePatienceMs).at_ns()));
  Result<Fd> fd = listen();
  const auto decided = [&] {
    if (!fd.ok() && fd.status().code() == FSCCL_ERR_INVALID_STATE) fd = listen();
    return fd.ok() || fd.status().code() != FSCCL_ERR_INVALID_STATE;
  };
  wait_until(decided, patience, kNothingBreaks, between_attempts());
  return fd;
}

// `on_this_host` says whether rank 0 is on this host.
Result<Credentials> choose_credentials(const LaunchEnvironment& launch, const Config& settings,
                                       bool on_this_host) {
  Credentials credentials;
  if (!settings.job_secret_file.empty()) {
    credentials.mode = AuthMode::kSecret;
    FSCCL_ASSIGN(credentials.key, read_secret_file(settings.job_secret_file));
    return credentials;
  }
  // If ranks of other hosts may come without a proof, the ranks of this host give none either,
  // because all ranks of a job must have the same mode.
  const bool by_user = on_this_host && !(launch.hosts_unknown && settings.insecure);
  credentials.mode = by_user ? AuthMode::kUser : AuthMode::kNone;
  if (by_user || settings.insecure) return credentials;
  const std::string& said = launch.local_ranks_said;
  const std::string why =
      launch.hosts_unknown ? fmt::format(" (MASTER_ADDR={} is not this one)", launch.master_address)
      : said.empty()       ? ""
                           : fmt::format(" ({}, of {} ranks)", said, launch.ranks);
  return fail(FSCCL_ERR_AUTH,
              "the {} ranks are on several hosts{} and nothing proves that they belong together: "
              "set FSCCL_JOB_SECRET_FILE to a file "
              "with the same secret on every "
              "host (mode 0600), or use fsccl_unique_id_create(), or, on a closed network only, "
              "set FSCCL_INSECURE=1",
              launch.ranks, why);
}

uint64_t number_from(const std::string& text) {
  const Digest digest = fingerprint_text(text);
  uint64_t number = 0;
  std::memcpy(&number, digest.data(), sizeof(number));
  return number;
}

// Two processes with RANK=0 and two jobs with one name look alike to this process, so the error
// names both causes.
Result<Fd> listen_on_host(const std::string& name, const LaunchEnvironment& launch,
                          Deadline deadline) {
  Result<Fd> listener = patiently([&] { return listen_unix(name); }, deadline);
  if (listener.ok() || listener.status().code() != FSCCL_ERR_INVALID_STATE) return listener;
  return fail(
      FSCCL_ERR_CONFIG,
      "another job with the same name (\"{}\") runs on this host, or two processes of this one "
      "have rank 0: {} holds @{}, where "
      "process {} should listen; give each job its own MASTER_PORT, and each process its own RANK",
      launch.job, owner_of(name), name, getpid());
}

Result<Fd> listen_between_hosts(uint16_t port, Deadline deadline) {
  Result<Fd> listener = patiently([&] { return listen_tcp(port); }, deadline);
  if (listener.ok() || listener.status().code() != FSCCL_ERR_INVALID_STATE) return listener;
  return fail(FSCCL_ERR_CONFIG,
              "TCP port {} is in use on the host of rank 0: set FSCCL_BOOTSTRAP_PORT to a free "
              "one, the same on all ranks; or is there "
              "another process with rank 0?",
              port);
}

Result<uint16_t> meeting_port(const LaunchEnvironment& launch, const Config& settings) {
  if (!settings.bootstrap_tcp)
    return fail(FSCCL_ERR_CONFIG,
                "FSCCL_BOOTSTRAP_TCP=0, but {} says that the {} ranks are on several hosts",
                name_of(launch.launcher), launch.ranks);
  if (launch.master_address.empty())
    return fail(FSCCL_ERR_CONFIG,
                "MASTER_ADDR is not set: the {} ranks are on several hosts and need the address of "
                "rank 0's, which {} does not "
                "tell (mpirun -x "
                "MASTER_ADDR=..., mpiexec -genv MASTER_ADDR ...)",
                launch.ranks, name_of(launch.launcher));
  if (settings.bootstrap_port != 0) return static_cast<uint16_t>(settings.bootstrap_port);
  if (launch.master_port == 0 || launch.master_port == UINT16_MAX)
    return fail(FSCCL_ERR_CONFIG,
                "FSCCL_BOOTSTRAP_PORT is not set, and MASTER_PORT + 1, its default, is not a port");
  return static_cast<uint16_t>(launch.master_port + 1);
}

Result<std::vector<SocketAddress>> look_up(const std::string& master_address, uint16_t port) {
  Result<std::vector<SocketAddress>> found = resolve(master_address, port);
  if (!found.ok())
    return fail(
        found.status().code(),
        "MASTER_ADDR: {}; give an address of rank 0's host, or a name that this host can look up",
        found.status().error().text);
  FSCCL_ASSIGN(const uint32_t link, only_link());
  for (SocketAddress& address : found.value())
    if (link_of(address) == 0) address = tcp_address(ip_of(address), port, link);
  return found;
}

Result<bool> any_on_this_host(const std::vector<SocketAddress>& addresses) {
  for (const SocketAddress& address : addresses) {
    FSCCL_ASSIGN(const bool on_this_host, is_this_host(address));
    if (on_this_host) return true;
  }
  return false;
}

// Finds the rendezvous for one rank.
class RendezvousSearch {
 public:
  RendezvousSearch(const LaunchEnvironment& launch, const Config& settings, const std::string& name,
                   Deadline deadline)
      : launch_(launch), settings_(settings), deadline_(deadline) {
    ListenerName digits;
    const Digest digest = fingerprint_text(fmt::format("{} user {}", name, geteuid()));
    std::memcpy(digits.data(), digest.data(), digits.size());
    listener_ = listener_name(digits);
    place_.meeting = number_from(name);
    place_.host_id = settings.host_id;
    place_.rendezvous_rank = 0;
  }

  Result<RendezvousPoint> find(Status problem) {
    const MoreDescriptors room(!problem.ok());
    Status status = launch_.hosts_unknown ? anywhere()
                    : launch_.one_host    ? on_host()
                                          : between_hosts();
    if (!status.ok()) return tell_this_host(std::move(status));
    if (!problem.ok()) return tell(place_, std::move(problem));
    if (launch_.rank == 0)
      FSCCL_TRY(RendezvousServer::open(place_.credentials, place_.meeting, random_number(),
                                       std::move(listeners_), advice_));
    return std::move(place_);
  }

 private:
  Status on_host() {
    FSCCL_ASSIGN(place_.credentials, choose_credentials(launch_, settings_, true));
    place_.addresses.push_back(unix_address(listener_));
    place_.who_listens = "rank 0, on the same host,";
    return launch_.rank == 0 ? open_unix() : success();
  }

  Status between_hosts() {
    FSCCL_ASSIGN(place_.credentials, choose_credentials(launch_, settings_, false));
    FSCCL_ASSIGN(const uint16_t port, meeting_port(launch_, settings_));
    FSCCL_ASSIGN(place_.addresses, look_up(launch_.master_address, port));
    FSCCL_TRY(go_by_tcp(port));
    return launch_.rank == 0 ? open_tcp(port) : success();
  }

  // Finds the place if no variable says whether the ranks share a host. Each rank may then name the
  // host of rank 0 in its own way, and rank 0 may name it localhost although other ranks come from
  // other hosts. So rank 0 listens for its host and, if TCP may be used, for others. A rank looks
  // for rank 0 on its own host if MASTER_ADDR means this host there, and then over TCP.
  Status anywhere() {
    bool on_this_host = launch_.one_host;
    std::vector<SocketAddress> addresses;
    const Result<uint16_t> port = meeting_port(launch_, settings_);
    if (!on_this_host) {
      FSCCL_ASSIGN(addresses, look_up(launch_.master_address, port.ok() ? port.value() : 0));
      FSCCL_ASSIGN(on_this_host, any_on_this_host(addresses));
    }
    FSCCL_ASSIGN(place_.credentials, choose_credentials(launch_, settings_, on_this_host));
    const bool tcp = place_.credentials.mode != AuthMode::kUser && settings_.bootstrap_tcp;
    if (!port.ok() && (!on_this_host || (tcp && !launch_.one_host))) return port.status().clone();
    place_.who_listens =
        fmt::format("rank 0, on this host as MASTER_ADDR={} says,", launch_.master_address);
    if (on_this_host) place_.addresses.push_back(unix_address(listener_));
    if (tcp) place_.addresses.insert(place_.addresses.end(), addresses.begin(), addresses.end());
    if (tcp && port.ok()) FSCCL_TRY(go_by_tcp(port.value()));
    if (launch_.rank != 0) return success();
    if (!tcp) advice_ = "; ranks on other hosts need FSCCL_JOB_SECRET_FILE";
    FSCCL_TRY(open_unix());
    const Status opened = tcp && port.ok() ? open_tcp(port.value()) : success();
    if (opened.ok() || opened.code() != FSCCL_ERR_CONFIG || !launch_.one_host)
      return opened.clone();
    FSCCL_LOG(kWarn, "ranks of this host alone can join (MASTER_ADDR={}): {}",
              launch_.master_address, opened.text());
    return success();
  }

  Status go_by_tcp(uint16_t port) {
    place_.tcp = true;
    for (const SocketAddress& address : place_.addresses)
      place_.link = std::max(place_.link, link_of(address));
    if (place_.link == 0) {
      FSCCL_ASSIGN(place_.link, only_link());
    }
    if (place_.addresses.empty() || !place_.addresses.front().is_unix())
      place_.who_listens =
          fmt::format("rank 0 at MASTER_ADDR={} port {}", launch_.master_address, port);
    return success();
  }

  Status open_unix() {
    FSCCL_ASSIGN(Fd listener, listen_on_host(listener_, launch_, deadline_));
    listeners_.push_back(std::move(listener));
    return success();
  }
  Status open_tcp(uint16_t port) {
    FSCCL_ASSIGN(Fd listener, listen_between_hosts(port, deadline_));
    listeners_.push_back(std::move(listener));
    return success();
  }

  // Tells the ranks of this host why this rank does not join, so that they need not wait for the
  // deadline. Rank 0 tells those that come to it; another rank tells the process that listens for
  // them. Returns `why`, or an earlier failure of the job.
  Status tell_this_host(Status why) {
    RendezvousPoint local = place_;
    local.credentials = {};
    local.credentials.mode = AuthMode::kUser;
    local.addresses = {unix_address(listener_)};
    listeners_.clear();
    if (launch_.rank == 0) {
      Result<Fd> listener = listen_unix(listener_);
      if (listener.ok()) listeners_.push_back(listener.take());
      return tell(local, std::move(why));
    }
    bool near = launch_.one_host;
    if (!near) {
      const Result<std::vector<SocketAddress>> addresses = resolve(launch_.master_address, 0);
      const Result<bool> found =
          addresses.ok() ? any_on_this_host(addresses.value()) : Result<bool>(false);
      near = found.ok() && found.value();
    }
    return near ? tell(local, std::move(why)) : std::move(why);
  }

  // Tells `why` to the ranks that come to `place`, if this rank listens there, or else to the
  // process that listens there. Returns `why`, or an earlier failure of the job.
  Status tell(const RendezvousPoint& place, Status why) {
    if (listeners_.empty())
      return report_failure(place, launch_.rank, launch_.ranks, std::move(why), deadline_);
    if (why.code() == FSCCL_ERR_LIMIT &&
        !check_descriptors(kRefusalDescriptors, "refuse a job").ok()) {
      listeners_.clear();
      const Result<Fd> refusal = refuse_unix(listener_);
      // Ranks that come before this deadline see the refusal.
      const Deadline seen =
          Deadline::at(std::min(Deadline::in_ms(kRefusalMs).at_ns(), deadline_.at_ns()));
      if (refusal.ok()) wait_until([] { return false; }, seen, kNothingBreaks, between_attempts());
      return why;
    }
    RendezvousServer::refuse(place.credentials, place.meeting, launch_.ranks, std::move(listeners_),
                             why, deadline_);
    return why;
  }

  const LaunchEnvironment& launch_;
  const Config& settings_;
  const Deadline deadline_;
  std::string listener_;  // the name of the Unix listener where ranks of one host meet
  RendezvousPoint place_;
  std::vector<Fd> listeners_;
  std::string advice_;
};

}  // namespace

Result<RendezvousPoint> meet_from_environment(const LaunchEnvironment& launch,
                                              const Config& settings, uint64_t instance,
                                              Deadline deadline, Status problem) {
  return RendezvousSearch(launch, settings, fmt::format("{} #{}", launch.job, instance), deadline)
      .find(std::move(problem));
}

}  // namespace fsccl
