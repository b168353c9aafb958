#include "comm/job_context.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <numeric>

#include "base/config.h"
#include "base/descriptors.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/reactor.h"
#include "base/undo.h"
#include "bootstrap/heartbeat.h"
#include "comm/at_exit.h"
#include "comm/communicator.h"
#include "fsccl/insight.h"
#include "transports/shm/shm.h"
#include "transports/transports.h"

namespace fsccl {

std::atomic<int> oversubscribed_communicators{0};

namespace {

constexpr int64_t kLookNs = 250'000'000;  // between two times that a recording in a file notes
constexpr const char* kMakes = "make a communicator";
constexpr uint8_t kShortOfDescriptors = 2;  // a value of Facts::unreadable

}  // namespace

Result<std::shared_ptr<JobContext>> JobContext::join(const JoinRequest& request) {
  auto context = std::make_shared<JobContext>();
  FSCCL_ASSIGN(context->job_, Job::join(request));
  context->lost_ranks_.resize(static_cast<size_t>(context->job_->size()));
  // The memory is allocated now, so that a death can be noted when memory is short.
  context->deaths_.reserve(static_cast<size_t>(context->job_->size()));
  context->job_->on_loss([raw = context.get()](int rank, bool left) { raw->on_loss(rank, left); });
  // The other ranks may be past the point at which this rank has failed, and wait for it.
  Undo abandoned([&] { context->job_->abandon(); });
  FSCCL_TRY(context->meet(request.deadline));
  abandoned.keep();
  leave_at_exit(context.get());
  return context;
}

JobContext::~JobContext() {
  forget_at_exit(this);
  Reactor::instance().remove_hook(look_hook_);
  node_.reset();
  if (job_) job_->leave();
}

// Loads the measured costs and rules on which choices depend.
Status JobContext::load_choices(Facts* mine) {
  const ConfigRef settings = config();
  mine->plan = hash_of(settings->plan);
  FSCCL_TRY(rules_in_force(*settings, tuning_).status().clone());
  FSCCL_ASSIGN(tuning_, load_tuning(settings->tuning_file));
  mine->tuning = tuning_.hash;
  if (!tuning_.costs.empty()) machine_ = machine_name();
  mine->machine = hash_of(machine_);
  bool automatic = false;
  return parse_kernels(settings->kernels, &mine->kernels, &automatic);
}

// Returns the first rank of this host. It measures, or knows, which kernels are best there.
int JobContext::chooses_kernels() const {
  int first = 0;
  while (!one_host({first, job_->rank()})) first++;
  return first;
}

void JobContext::take_kernels(KernelStart found) {
  const int first = chooses_kernels();
  if (first != job_->rank()) {
    found.choice = facts_[static_cast<size_t>(first)].kernels;
    found.from = fmt::format("rank {}", first);
  }
  run_kernels(std::move(found));
}

Result<std::shared_ptr<const std::vector<Rule>>> JobContext::rules() const {
  return rules_in_force(*config(), tuning_);
}

std::shared_ptr<const std::vector<NativePrice>> JobContext::native_prices() const {
  return tuning_.native.empty() ? nullptr
                                : std::make_shared<const std::vector<NativePrice>>(tuning_.native);
}

// Compares this rank's facts with another rank's.
Status JobContext::compare(const Facts& mine, size_t rank) const {
  const Facts& theirs = facts_[rank];
  const int peer = static_cast<int>(rank);
  if (theirs.unreadable)
    return fail(FSCCL_ERR_CONFIG,
                "rank {} cannot use its FSCCL_PLAN, FSCCL_KERNELS or FSCCL_TUNING_FILE: its own "
                "error says why",
                rank)
        .with_peer(job_->rank(), peer);
  const char* differs = theirs.transport != mine.transport         ? "FSCCL_TRANSPORT"
                        : theirs.network != mine.network           ? "FSCCL_NETWORK"
                        : theirs.plugin != mine.plugin             ? "FSCCL_TRANSPORT_PLUGIN"
                        : theirs.ucx_path != mine.ucx_path         ? "FSCCL_UCX_PATH"
                        : theirs.hierarchy != mine.hierarchy       ? "FSCCL_HIERARCHY"
                        : theirs.reproducible != mine.reproducible ? "FSCCL_REPRODUCIBLE"
                        : theirs.checksum != mine.checksum         ? "FSCCL_CHECKSUM"
                        : theirs.plan != mine.plan                 ? "FSCCL_PLAN"
                        : theirs.heartbeat_ms != mine.heartbeat_ms ? "FSCCL_HEARTBEAT_MS"
                        : theirs.slot_bytes != mine.slot_bytes     ? "FSCCL_SLOT_BYTES"
                                                                   : nullptr;
  if (differs)
    return fail(FSCCL_ERR_MISMATCH,
                "ranks {} and {} have {} set differently: set it alike on all ranks", job_->rank(),
                rank, differs)
        .with_peer(job_->rank(), peer);
  if (theirs.tuning != mine.tuning)
    return fail(FSCCL_ERR_MISMATCH,
                "ranks {} and {} have different tuning files, or one has none: give all ranks the "
                "same content in FSCCL_TUNING_FILE "
                "(here: {})",
                job_->rank(), rank, config()->tuning_file.empty() ? "none" : config()->tuning_file)
        .with_peer(job_->rank(), peer);
  return success();
}

// Exchanges the facts that the ranks of a job must know of each other before any of them makes a
// channel.
Status JobContext::meet(Deadline deadline) {
  Facts mine{};
  // Processors whose numbers differ by 1024 count as one.
  for (const int cpu : affinity()) mine.words[cpu / 64 % 16] |= uint64_t{1} << (cpu % 64);
  mine.taken = oversubscribed_communicators > 0;
  choice_ = config()->transport;
  mine.transport = static_cast<uint8_t>(choice_);
  mine.hierarchy = static_cast<uint8_t>(config()->hierarchy);
  mine.reproducible = static_cast<uint8_t>(config()->reproducible);
  checksum_ = config()->checksum;
  mine.checksum = checksum_ ? 1 : 0;
  mine.heartbeat_ms = config()->heartbeat_ms;
  mine.slot_bytes = config()->slot_bytes;
  mine.network = static_cast<uint8_t>(config()->network);
  mine.plugin = config()->transport_plugin.empty() ? 0 : 1;
  mine.ucx_path = static_cast<uint8_t>(config()->ucx_path);
  mine.fast_network =
      !asked_network(*config()) && preferred_network() == std::string_view("ucx") ? 1 : 0;
  mine.seat = topo::seat_of(mine.words);
  Status room = check_descriptors(kDescriptorsToMake, kMakes);
  Status loaded = load_choices(&mine);
  mine.unreadable = !room.ok() ? kShortOfDescriptors : loaded.ok() ? 0 : 1;
  KernelStart kernels;
  if (chooses_kernels() == job_->rank()) kernels = find_kernels(config()->kernels, kProbeMs);
  mine.kernels = kernels.choice;
  random_bytes(mine.salt, sizeof mine.salt);
  facts_.resize(static_cast<size_t>(job_->size()));
  FSCCL_TRY(job_->all_gather(&mine, facts_.data(), sizeof mine, deadline));
  FSCCL_TRY(std::move(room));
  for (size_t rank = 0; rank < facts_.size(); rank++)
    if (facts_[rank].unreadable == kShortOfDescriptors)
      return short_of_descriptors(static_cast<int>(rank), kMakes);
  FSCCL_TRY(std::move(loaded));
  for (size_t rank = 0; rank < facts_.size(); rank++) {
    taken_ |= facts_[rank].taken != 0;
    FSCCL_TRY(compare(mine, rank));
  }
  take_kernels(std::move(kernels));
  const std::string_view salt(reinterpret_cast<const char*>(facts_.front().salt), sizeof mine.salt);
  const ConfigRef settings = config();
  FSCCL_ASSIGN(recorder_,
               Recorder::create({settings->trace_dir, static_cast<uint32_t>(settings->trace_events),
                                 hash_of(salt), job_->rank(), job_->size()}));
  // A recording that others read while the job runs, or after it was killed, then shows how long
  // ranks have waited.
  if (!settings->trace_dir.empty())
    look_hook_ = Reactor::instance().add_hook([this] {
      recorder_->look_at_clock();
      return kLookNs;
    });
  metrics_file_ = MetricsFile::create(*settings, job_->rank());
  if (const std::string text = overruled_network(*settings); job_->rank() == 0 && !text.empty())
    FSCCL_LOG(kWarn, "{}", text);
  const bool network =
      forces_network(choice_) || (choice_ == TransportChoice::kAuto && !one_host(all_ranks()));
  if (network) FSCCL_TRY(join_network(deadline));
  return job_->begin_beats(
      heartbeat_times(*settings), [this](int rank, const PeerLife& life) { on_life(rank, life); },
      deadline);
}

// Returns the transport between hosts that this rank would choose for all ranks.
const char* JobContext::network_name() const {
  if (const char* const asked = asked_network(*config())) return asked;
  return std::all_of(facts_.begin(), facts_.end(),
                     [](const Facts& one) { return one.fast_network != 0; })
             ? "ucx"
             : "tcp";
}

Status JobContext::fits(const Transport& network, const TransportNode& node) {
  if (node.endpoint().size() <= kEndpointRoom) return success();
  return fail(FSCCL_ERR_LIMIT,
              "the addresses of {} take {} bytes, {} are kept for them: use fewer devices",
              network.name(), node.endpoint().size(), kEndpointRoom);
}

// Joins the transport between hosts. A rank that cannot join sends the reason instead of its
// endpoint. No rank uses the transport then, and all know why. The gather takes as many bytes for
// each endpoint address as the largest one has: a job has many ranks, and a transport may reserve
// room for large addresses.
Status JobContext::join_network(Deadline deadline) {
  struct Head {
    fsccl_status_t code;  // FSCCL_OK: the transport can be used
    uint32_t bytes;       // bytes of its endpoint address
    char name[16];        // name of the transport, because ranks may have different plug-ins
  };
  const SecretKey key = job_->derive_key("fsccl transports", ByteView(facts_.front().salt));
  std::vector<uint64_t> hosts;
  for (const int rank : all_ranks()) hosts.push_back(job_->member(rank).host);
  const fsccl_transport_job_t job{sizeof job, job_->rank(),      job_->size(),
                                  key.data(), checksum_ ? 1 : 0, hosts.data()};
  std::string why;
  network_ = usable_transport(network_name(), &why);
  Head mine{};
  mine.code = FSCCL_ERR_NOT_AVAILABLE;
  std::vector<uint8_t> endpoint(kEndpointRoom);
  if (network_) {
    std::strncpy(mine.name, network_->name(), sizeof mine.name - 1);
    Result<std::unique_ptr<TransportNode>> joined = network_->join(job);
    Status status = joined.ok() ? fits(*network_, *joined.value()) : joined.take_status();
    mine.code = status.code();
    if (!status.ok()) {
      why = status.text();
    } else {
      node_ = joined.take();
      mine.bytes = static_cast<uint32_t>(node_->endpoint().size());
      std::copy(node_->endpoint().begin(), node_->endpoint().end(), endpoint.begin());
    }
  }
  if (mine.code != FSCCL_OK)
    mine.bytes =
        static_cast<uint32_t>(why.copy(reinterpret_cast<char*>(endpoint.data()), endpoint.size()));
  std::vector<Head> heads(facts_.size());
  FSCCL_TRY(job_->all_gather(&mine, heads.data(), sizeof mine, deadline));
  size_t most = 1;
  for (Head& head : heads)
    most = std::max<size_t>(most, head.bytes = std::min(head.bytes, kEndpointRoom));
  std::vector<unsigned char> endpoints(heads.size() * most);
  FSCCL_TRY(job_->all_gather(endpoint.data(), endpoints.data(), most, deadline));
  // The error is that of the rank without an endpoint address, not that its transport differs.
  for (size_t rank = 0; rank < heads.size(); rank++)
    if (const fsccl_status_t code = heads[rank].code; code != FSCCL_OK)
      return fail(is_shortage(code) ? code : FSCCL_ERR_NOT_AVAILABLE,
                  "rank {} cannot use the {} transport, which {}: {}", rank, network_name(),
                  !one_host(all_ranks()) ? "joins ranks of several hosts" : "the settings ask for",
                  std::string_view(reinterpret_cast<const char*>(&endpoints[rank * most]),
                                   heads[rank].bytes))
          .with_peer(job_->rank(), static_cast<int>(rank));
  for (size_t rank = 0; rank < heads.size(); rank++)
    if (std::memcmp(heads[rank].name, mine.name, sizeof mine.name) != 0)
      return fail(FSCCL_ERR_MISMATCH,
                  "the FSCCL_TRANSPORT_PLUGIN of rank {} is the transport {}, that of rank {} is "
                  "{}: give all ranks the same",
                  job_->rank(), mine.name, rank,
                  std::string(heads[rank].name, strnlen(heads[rank].name, sizeof heads[rank].name)))
          .with_peer(job_->rank(), static_cast<int>(rank));
  return node_->connect(endpoints.data(), most);
}

std::vector<int> JobContext::all_ranks() const {
  std::vector<int> ranks(static_cast<size_t>(job_->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

bool JobContext::one_host(const std::vector<int>& ranks) const {
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    return job_->member(rank).host == job_->member(ranks.front()).host;
  });
}

Result<const Transport*> JobContext::transport_for(const std::vector<int>& ranks) const {
  const bool near = one_host(ranks);
  if (node_ && (!near || forces_network(choice_))) return network_;
  if (near) return shm_transport();
  return fail(FSCCL_ERR_NOT_AVAILABLE,
              "the ranks are on several hosts, and FSCCL_TRANSPORT=shm joins the ranks of one host "
              "only: set it to auto on all ranks; if "
              "they are on one host after all (containers hide it), set FSCCL_HOST_ID to the same "
              "text on all of them");
}

HostShape JobContext::host_shape(const std::vector<int>& ranks) const {
  std::map<uint64_t, int> hosts;
  for (const int rank : ranks) hosts[job_->member(rank).host]++;
  const int per_host = hosts.begin()->second;
  const bool even = std::all_of(hosts.begin(), hosts.end(),
                                [&](const auto& host) { return host.second == per_host; });
  return {static_cast<int>(hosts.size()), even ? per_host : 0};
}

topo::LinkClass JobContext::link(int a, int b) const {
  if (job_->member(a).host != job_->member(b).host) return topo::LinkClass::network;
  return topo::between(facts_[static_cast<size_t>(a)].seat, facts_[static_cast<size_t>(b)].seat);
}

int JobContext::farthest(const std::vector<int>& ranks) const {
  if (ranks.size() < 2) return ranks.front();
  return *std::max_element(ranks.begin() + 1, ranks.end(), [&](int a, int b) {
    return link(ranks.front(), a) < link(ranks.front(), b);
  });
}

const Costs* JobContext::known_costs(const std::vector<int>& ranks,
                                     std::string_view transport) const {
  if (tuning_.costs.empty()) return nullptr;
  const uint64_t this_machine = hash_of(machine_);
  const bool alike = std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    return facts_[static_cast<size_t>(rank)].machine == this_machine;
  });
  return alike ? tuning_.find(machine_, transport, link(ranks.front(), farthest(ranks))) : nullptr;
}

double JobContext::ranks_per_core(const std::vector<int>& ranks) const {
  std::map<uint64_t, std::vector<int>> hosts;
  for (const int rank : ranks) hosts[job_->member(rank).host].push_back(rank);
  double most = taken_ ? 2 : 0;
  for (const auto& [host, those] : hosts)
    most = std::max(most, static_cast<double>(those.size()) /
                              static_cast<double>(std::max<size_t>(cores_of(those), 1)));
  return most;
}

// Returns the number of cores on which these ranks of one host may run.
size_t JobContext::cores_of(const std::vector<int>& ranks) const {
  size_t cores = 0;
  for (size_t word = 0; word < 16; word++) {
    uint64_t together = 0;
    for (const int rank : ranks) together |= facts_[static_cast<size_t>(rank)].words[word];
    cores += static_cast<size_t>(std::popcount(together));
  }
  return cores;
}

void JobContext::add(Communicator* comm) {
  const std::lock_guard lock(mutex_);
  communicators_.push_back(comm);
  for (const int dead : deaths_)  // in the order of the deaths, because the first is the cause
    if (const int rank = comm->rank_of(dead); rank >= 0)
      comm->engine().lost(rank, false, silence_of(dead));
  for (int rank = 0; rank < comm->size(); rank++)
    if (lost_ranks_[static_cast<size_t>(comm->job_rank(rank))] == 2)
      comm->engine().lost(rank, true);
}

void JobContext::remove(Communicator* comm) {
  const std::lock_guard lock(mutex_);
  std::erase(communicators_, comm);
}

int JobContext::first_dead(const std::vector<int>& ranks) {
  // This load pairs with the store in on_loss().
  if (!lost_.load(std::memory_order_acquire)) return -1;
  const std::lock_guard lock(mutex_);
  const auto dead = std::find_if(deaths_.begin(), deaths_.end(), [&](int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  });
  return dead == deaths_.end() ? -1 : *dead;
}

// Returns the reason why a lost rank counts as dead, or an empty text.
std::string JobContext::silence_of(int rank) const {
  const PeerLife life = job_->life(rank);
  return life.silent_ms > 0 || life.host_lost ? describe(life) : std::string();
}

void JobContext::on_loss(int rank, bool left) {
  const std::string silence = silence_of(rank);
  const std::lock_guard lock(mutex_);
  lost_ranks_[static_cast<size_t>(rank)] = left ? 2 : 1;
  if (!left) {
    deaths_.push_back(rank);
    // This store pairs with the load in first_dead().
    lost_.store(true, std::memory_order_release);
  }
  for (Communicator* comm : communicators_)
    if (const int member = comm->rank_of(rank); member >= 0)
      comm->engine().lost(member, left, silence);
}

void JobContext::on_life(int rank, const PeerLife& life) {
  const bool suspect = life.state == FSCCL_PEER_SUSPECT;
  const Member& member = job_->member(rank);
  if (suspect)
    FSCCL_LOG(kWarn, "rank {} (process {}) is a suspect: {}", rank, member.pid, describe(life));
  else
    FSCCL_LOG(kWarn, "rank {} (process {}) is alive again, after {} ms", rank, member.pid,
              life.silent_ms);
  recorder_->silence(suspect ? recording::Event::suspect : recording::Event::alive, rank,
                     life.silent_ms, life.stopped);
}

}  // namespace fsccl
