#include "bootstrap/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "bootstrap/credentials.h"
#include "bootstrap/registrar.h"

namespace fsccl {

namespace {

constexpr int64_t kNamePatienceMs = 2000;  // an earlier communicator of the same name may just be ending

std::string owner_of(const std::string& name) {
  const Result<Fd> fd = connect_to(unix_address(name), Deadline::in_ms(100));
  const Result<PeerUser> owner = fd.ok() ? peer_user(fd.value().get()) : Result<PeerUser>(fd.status().clone());
  return owner.ok() ? fmt::format("process {} of user {}", owner.value().pid, owner.value().uid) : "another process";
}

Result<Fd> patiently(const std::function<Result<Fd>()>& listen, Deadline deadline) {
  const Deadline patience = Deadline::at(std::min(deadline.at_ns(), Deadline::in_ms(kNamePatienceMs).at_ns()));
  Result<Fd> fd = listen();
  const auto decided = [&] {
    if (!fd.ok() && fd.status().code() == FSCCL_ERR_INVALID_STATE) fd = listen();
    return fd.ok() || fd.status().code() != FSCCL_ERR_INVALID_STATE;
  };
  wait_until(decided, patience, kNothingBreaks, between_attempts());
  return fd;
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
    return fail(FSCCL_ERR_CONFIG, "FSCCL_BOOTSTRAP_TCP=0, but {} says that the {} ranks are on several hosts",
                name_of(launch.launcher), launch.ranks);
  if (launch.master_address.empty())
    return fail(FSCCL_ERR_CONFIG,
                "MASTER_ADDR is not set: the {} ranks are on several hosts and need the address of rank 0's, which {} does not "
                "tell (mpirun -x "
                "MASTER_ADDR=..., mpiexec -genv MASTER_ADDR ...)",
                launch.ranks, name_of(launch.launcher));
  if (settings.bootstrap_port != 0) return static_cast<uint16_t>(settings.bootstrap_port);
  if (launch.master_port == 0 || launch.master_port == UINT16_MAX)
    return fail(FSCCL_ERR_CONFIG, "FSCCL_BOOTSTRAP_PORT is not set, and MASTER_PORT + 1, its default, is not a port");
  return static_cast<uint16_t>(launch.master_port + 1);
}

}  // namespace

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
    Result<std::vector<SocketAddress>> addresses = resolve(launch.master_address, port);
    if (!addresses.ok())
      return fail(addresses.status().code(),
                  "MASTER_ADDR: {}; give an address of rank 0's host, or a name that this host can look up",
                  addresses.status().error().text);
    place.addresses = addresses.take();
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
