// This file is compiled with -Dfsccl=fsccl_simulated.
#include "forecast/start/simulated_start.h"

#include <memory>
#include <mutex>

#include "bootstrap/credentials.h"
#include "bootstrap/join.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/tree.h"
#include "transports/sim/process.h"
#include "transports/sim/sockets.h"

namespace fsccl {
namespace {

using sim::Process;

constexpr int64_t kDeadlineMs = 3'600'000;  // simulated time
constexpr int64_t kStayNs = 3'600 * sim::kSecond;
constexpr size_t kRoom = size_t{4} << 20;  // bytes that a connection may have under way

sim::StreamWeather weather_of(const StartSetting& setting) {
  sim::StreamWeather weather;
  weather.least_ns = weather.most_ns = setting.way_ns;
  weather.room = kRoom;
  weather.pieces = 0;
  return weather;
}

class Start {
 public:
  explicit Start(const StartSetting& setting)
      : setting_(setting), world_(1), wires_(world_, weather_of(setting)) {
    Process::fault.reset();
    world_.calm({setting.wake_ns, setting.call_ns, setting.byte_ns});
    taken_.ranks.resize(static_cast<size_t>(setting.ranks));
    wires_.on_frame = [this](Process& sender, FrameType type) { count(sender, type); };
    for (int r = 0; r < setting.ranks; r++)
      processes_.push_back(std::make_shared<Process>(world_, r, r / setting.per_host));
    processes_[0]->start([this] { open_rendezvous(); });
  }
  ~Start() {
    for (const auto& process : processes_) process->finish();
    processes_[0]->tidy_up([this] { RendezvousServer::cancel(place_.meeting); });
  }
  Start(const Start&) = delete;

  SimulatedStart run() {
    while (joined_ < setting_.ranks && taken_.problem.empty() && world_.step()) {
    }
    if (Process::fault) taken_.problem = *Process::fault;
    if (taken_.problem.empty() && joined_ < setting_.ranks)
      taken_.problem = fmt::format("{} of {} ranks have joined", joined_, setting_.ranks);
    taken_.joined_ns = world_.now() - began_ns_;
    for (const auto& process : processes_) {
      StartedRank& rank = taken_.ranks[static_cast<size_t>(process->number)];
      rank.calls = process->calls();
      rank.sockets = process->sockets.size();
      rank.most_sockets = process->most_sockets;
    }
    return std::move(taken_);
  }

 private:
  void count(Process& sender, FrameType type) {
    taken_.messages++;
    taken_.ranks[static_cast<size_t>(sender.number)].messages++;
    if (type != FrameType::kMembers || taken_.registered_ns > 0) return;
    taken_.registered_ns = world_.now() - began_ns_;
    taken_.rendezvous_calls = processes_[0]->calls();
  }

  // Opens the rendezvous as rank 0 does if the environment gives its address.
  void open_rendezvous() {
    place_.credentials.mode = AuthMode::kSecret;
    place_.credentials.key = SecretKey::random();
    place_.meeting = random_number();
    place_.tcp = setting_.ranks > setting_.per_host;
    place_.who_listens = "rank 0";
    place_.rendezvous_rank = 0;
    ListenerName name{};
    random_bytes(name.data(), name.size());
    std::vector<Fd> listeners;
    Result<Fd> near = listen_unix(listener_name(name)), far = listen_tcp(0);
    if (!near.ok() || !far.ok()) return give_up("rank 0 cannot listen");
    near_ = unix_address(listener_name(name));
    far_ = tcp_address(sim::ip_of_host(0), port_of(local_address(far.value().get())));
    listeners.push_back(near.take());
    listeners.push_back(far.take());
    const Status open = RendezvousServer::open(place_.credentials, place_.meeting, place_.meeting,
                                               std::move(listeners));
    if (!open.ok()) return give_up(open.text());
    began_ns_ = world_.now();
    for (const auto& process : processes_)
      if (process->number > 0) process->start([this, r = process->number] { main(r); });
    main(0);
  }

  void main(int r) {
    Process& process = *processes_[static_cast<size_t>(r)];
    RendezvousPoint place = place_;
    place.addresses.push_back(process.host == 0 ? near_ : far_);
    const Result<std::shared_ptr<Job>> job =
        join_at(place, r, setting_.ranks, Deadline::in_ms(kDeadlineMs));
    if (process.over()) return;
    if (!job.ok()) return give_up(job.status().text());
    taken_.ranks[static_cast<size_t>(r)].order = static_cast<TreeJob&>(*job.value()).order();
    joined_++;
    while (!process.over()) process.sleep(kStayNs);
  }
  void give_up(const std::string& why) {
    if (taken_.problem.empty()) taken_.problem = why;
  }

  const StartSetting setting_;
  sim::World world_;
  sim::Wires wires_;
  std::vector<std::shared_ptr<Process>> processes_;
  RendezvousPoint place_;
  SocketAddress near_, far_;
  int64_t began_ns_ = 0;
  int joined_ = 0;
  SimulatedStart taken_;
};

}  // namespace

SimulatedStart simulate_start(const StartSetting& setting) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  return Start(setting).run();
}

}  // namespace fsccl
