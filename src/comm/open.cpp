// Makes a communicator. The transport opens its channel, with the job's help. Then the ranks agree
// that all can begin, measure what is not known, and start the engine.
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/config.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/thrown.h"
#include "comm/agreement.h"
#include "comm/communicator.h"
#include "engine/checksums.h"
#include "engine/failure.h"
#include "select/calibration.h"

namespace fsccl {
namespace {

// If ranks share cores, slots are large, so that operations take fewer rounds. With many ranks they
// are not, because their slots would take too much memory.
constexpr size_t kLargeSlotBytes = 256u << 10;
constexpr int kFewRanks = 16;
constexpr size_t kLeastChosenSlotBytes = 16u << 10;  // the smallest that transports choose
constexpr int64_t kNewsMs = 300, kNewsNapNs = 1'000'000;
// A wait spins for a few context switches. A longer one would only use the core of a peer that
// shares it.
constexpr int64_t kDefaultSpinUs = 20;

// From a quarter of the last cache on, streaming stores were faster in every kernel that was
// measured. Below this size they are not, nor if caches are larger than any working set that is
// used again.
uint64_t default_streaming_bytes(uint64_t last_cache_bytes) {
  return std::clamp<uint64_t>(last_cache_bytes / 4, 8u << 20, 24u << 20);
}
uint64_t cache_bytes(int name) { return static_cast<uint64_t>(std::max(sysconf(name), 0L)); }

std::atomic<uint64_t> communicators_made{0};

// Tells the other ranks of the channel why this rank leaves it. Ranks that have begun already would
// otherwise take the leaving for the failure and name this rank. Every rank finds different
// settings by itself.
void tell_others(const Startup& startup, const Status& why) {
  const Error& error = why.error();
  if (error.code != FSCCL_ERR_PEER_DEAD && error.code != FSCCL_ERR_TIMEOUT &&
      error.code != FSCCL_ERR_LINK)
    return;
  write_board(*startup.channel, startup.rank, error);
}

// Tells the other ranks of the channel that an exception makes this rank leave, for lack of memory.
// The error is made before there is a channel, because afterwards there may be no memory for it.
class LeavingWithoutMemory {
 public:
  LeavingWithoutMemory(const CommunicatorOptions& options, int rank, const std::string& name)
      : error_(error_without_memory(
            options.known_as.empty() ? rank : options.known_as[static_cast<size_t>(rank)], name)) {}
  ~LeavingWithoutMemory() {
    if (channel_ && thrown_) write_board(*channel_, error_.rank, error_);
  }
  LeavingWithoutMemory(const LeavingWithoutMemory&) = delete;
  void leaves(std::shared_ptr<Channel> channel) { channel_ = std::move(channel); }

 private:
  const Error error_;
  const Thrown thrown_;
  std::shared_ptr<Channel> channel_;
};

Status reserve(const Startup& startup) {
  const Status reserved = startup.channel->reserve();
  return reserved.ok() ? success()
                       : fail(reserved.code(), "rank {}: {}", startup.known_as(startup.rank),
                              reserved.text());
}

Deadline earlier(Deadline a, Deadline b) { return a.at_ns() < b.at_ns() ? a : b; }

}  // namespace

// The functions of the job that a transport may call while it opens a channel.
struct Communicator::OpeningOfJob final : Opening {
  JobContext& context;
  const std::vector<int>& members;
  uint64_t name;  // the number of the channel
  Deadline deadline;
  Communicator* parent;   // null if there is none
  bool survives;          // the attempt goes on if the parent fails
  Status problem;         // status of the last call
  int32_t concerns = -1;  // the rank that the transport's error concerns, by the channel's numbers
  bool offers = false;

  OpeningOfJob(JobContext& context_, const std::vector<int>& members_, uint64_t name_,
               Deadline deadline_, Communicator* parent_, bool survives_)
      : context(context_),
        members(members_),
        name(name_),
        deadline(deadline_),
        parent(parent_),
        survives(survives_) {}
  ~OpeningOfJob() {
    if (offers) context.job().withdraw_fd(name);
  }
  bool parent_failed() {
    if (!parent || survives) return false;
    parent->engine().look_for_failure();
    return parent->engine().failed();
  }
  // Returns the reason why the channel will not be opened, with a number of the job, or success as
  // long as there is no reason.
  Status why_cancelled() {
    if (parent_failed()) return parent->engine().failure();
    const int dead = context.first_dead(members);
    if (dead < 0) return survives ? parent->refused() : success();
    return fail(FSCCL_ERR_PEER_DEAD, "rank {} of the job died", dead)
        .with_peer(context.job().rank(), dead);
  }
  bool cancelled() override { return !why_cancelled().ok(); }
  Status publish_fd(int fd) override {
    problem = context.job().publish_fd(name, fd);
    offers = problem.ok();
    return problem.clone();
  }
  Result<Fd> fetch_fd(int rank) override {
    Result<Fd> fd = context.job().fetch_fd(members[static_cast<size_t>(rank)], name, deadline,
                                           [this] { return why_cancelled(); });
    if (!fd.ok()) problem = fd.status().clone();
    return fd;
  }
  // Returns the same as why_cancelled(), with the numbers that messages have.
  Status why_lost() {
    return explain(FSCCL_ERR_PEER_DEAD, "a rank was lost while the communicator was made");
  }

  // Returns the number by which readers of messages know a rank.
  int known_as(int job_rank) const { return parent ? parent->rank_of(job_rank) : job_rank; }
  std::vector<int> known_as() const {
    std::vector<int> all;
    for (const int member : members) all.push_back(known_as(member));
    return all;
  }
  Startup startup(const EngineOptions& engine, int rank, const std::vector<int>& known_as) {
    return {engine.channel.get(),
            rank,
            static_cast<int>(members.size()),
            deadline.at_ns(),
            [this] { return cancelled(); },
            known_as.data(),
            [this] { return why_lost(); }};
  }
  // Turns an error of the new communicator, whose numbers nobody else knows, into one of the
  // parent: its peer becomes a number of the parent.
  Status in_numbers_of_parent(Status status) const {
    const int peer = status.error().peer;
    if (!parent || peer < 0 || peer >= static_cast<int>(members.size())) return status;
    const int known = known_as(members[static_cast<size_t>(peer)]);
    return fail(status.code(), "{}, which is rank {} of the communicator that it is made of",
                status.text(), known)
        .with_peer(known_as(context.job().rank()), known);
  }
  // Returns the error of this rank, which has no channel. If this rank lacks memory or descriptors,
  // its error becomes that of the parent's engine, because other ranks of the parent may wait for
  // this rank.
  Status not_opened(const Status& opened) {
    Status why = explain(opened.code(), opened.text());
    if (!parent) context.job().abandon();  // other ranks may wait for this one
    if (!parent || survives || !is_shortage(why.code())) return why;
    why = fail(why.code(), "rank {}: {}", known_as(context.job().rank()), why.text())
              .with_peer(known_as(context.job().rank()), known_as(context.job().rank()));
    parent->engine().give_up(&why.error());
    return parent->engine().failure();
  }
  // Returns the reason why no channel was opened. It may be known better here than to the
  // transport.
  Status explain(fsccl_status_t code, const std::string& text) {
    if (Status refused = survives ? parent->refused() : success(); !refused.ok())
      return fail(refused.code(), "{}", refused.text())
          .with_peer(known_as(context.job().rank()), known_as(refused.error().peer));
    if (code == FSCCL_ERR_PEER_DEAD || (!problem.ok() && problem.code() == FSCCL_ERR_PEER_DEAD)) {
      // A rank for which another one waited may have ended because a third one died. The job will
      // report that soon.
      const auto told = [this] { return context.first_dead(members) >= 0; };
      wait_until(
          told, Deadline::in_ms(kNewsMs), [this] { return parent_failed(); }, Naps(kNewsNapNs));
      if (!parent_failed() && told()) problem = why_cancelled();
    }
    if (parent_failed()) return parent->engine().failure();
    const bool known = concerns >= 0 && static_cast<size_t>(concerns) < members.size();
    if (problem.ok() && known && code == FSCCL_ERR_TIMEOUT)
      problem = fail(code, "{}", text).with_peer(-1, members[static_cast<size_t>(concerns)]);
    if (problem.ok()) return fail(code, "{}", text);
    const int peer = known_as(problem.error().peer);
    Status why = problem.code() == FSCCL_ERR_TIMEOUT
                     ? fail(FSCCL_ERR_TIMEOUT, "rank {} did not come in time", peer)
                 : problem.code() == FSCCL_ERR_PEER_DEAD
                     ? fail(FSCCL_ERR_PEER_DEAD, "rank {} died or has left", peer)
                     : fail(problem.code(), "{}", text);
    return std::move(why).with_peer(known_as(context.job().rank()), peer);
  }
};

// Returns the request with which the transport opens the channel. It points into the arguments.
ChannelRequest Communicator::request(OpeningOfJob& opening, const CommunicatorOptions& options,
                                     const std::vector<int32_t>& pids, bool reads,
                                     bool known) const {
  const int64_t slot_bytes = config()->slot_bytes;
  ChannelRequest request;
  request.rank = rank_;
  request.ranks = size();
  request.node = context_->node();
  request.members = members_;
  request.pids = pids;
  request.meeting = opening.name;
  request.tag = tag_;
  request.deadline_ns = opening.deadline.at_ns();
  request.single_copy = reads;
  request.known = known;
  request.slot_bytes = slot_bytes != kConfigAuto                 ? static_cast<size_t>(slot_bytes)
                       : oversubscribed() && size() <= kFewRanks ? kLargeSlotBytes
                                                                 : 0;
  // A slot that has room for a line of every rank must also have room for its checksums.
  if (const size_t least =
          slot_bytes_with_checksums(static_cast<size_t>(size()) * sizeof(fsccl_transport_line_t));
      context_->checksum() && (request.slot_bytes || least > kLeastChosenSlotBytes))
    request.slot_bytes = std::max(request.slot_bytes, least);
  request.concerns = &opening.concerns;
  request.opening = &opening;
  request.known_as = options.known_as;
  request.describe = [](const fsccl_transport_line_t* line, char* text, size_t capacity) {
    const std::string words = describe(claim_of(*line));
    text[words.copy(text, capacity - 1)] = '\0';
  };
  return request;
}

// Returns the costs that are assumed if nothing is measured.
Costs Communicator::typical_costs_of(int farthest) const {
  Costs costs = typical_costs(context_->link(members_.front(), farthest));
  costs.can_read = true;
  return costs;
}

// Measures the transport's paths, if it has several and a measurement would say something about
// them.
Paths Communicator::find_paths(const Startup& startup, uint32_t* tick) const {
  Channel& channel = *startup.channel;
  if (size() == 1 || oversubscribed() || !channel.path(1)) return {};
  std::vector<topo::LinkClass> links;
  for (const int member : members_) links.push_back(context_->link(members_.front(), member));
  const Paths paths = fsccl::find_paths(startup, links, tick);
  for (int peer = 0; peer < size(); peer++)
    if (peer != rank_)
      channel.take_path(
          peer, paths[static_cast<size_t>(context_->link(job_rank(rank_), job_rank(peer)))]);
  return paths;
}

// Finds the processes of the members, and tells the engine which of them are this process.
std::vector<int32_t> Communicator::find_processes(EngineOptions* engine) const {
  std::vector<int32_t> pids;
  const Member& self = context_->job().member(context_->job().rank());
  for (const int job_rank : members_) {
    const Member& member = context_->job().member(job_rank);
    pids.push_back(member.pid);
    engine->same_process.push_back(member.pid == self.pid && member.start_time == self.start_time);
  }
  return pids;
}

std::unique_ptr<Communicator> Communicator::unopened(std::shared_ptr<JobContext> context,
                                                     std::vector<int> members, uint64_t name,
                                                     const CommunicatorOptions& options,
                                                     const Communicator* parent) {
  std::unique_ptr<Communicator> comm(new Communicator);
  comm->context_ = std::move(context);
  comm->members_ = std::move(members);
  comm->rank_ = comm->rank_of(comm->context_->job().rank());
  comm->tag_ = name;
  for (const int member : comm->members_)
    comm->tag_ = mix_hash(comm->tag_, static_cast<uint64_t>(member));
  comm->timeout_ms_ = options.timeout_ms ? options.timeout_ms : config()->timeout_ms;
  const uint64_t number = communicators_made++;
  comm->name_ = options.name.empty() ? fmt::format("comm {}", number) : options.name;
  comm->ranks_per_core_ = std::max(parent ? parent->ranks_per_core_ : 0,
                                   comm->context_->ranks_per_core(comm->members_));
  return comm;
}

Result<std::unique_ptr<Communicator>> Communicator::open(std::shared_ptr<JobContext> context,
                                                         std::vector<int> members, uint64_t name,
                                                         const CommunicatorOptions& options,
                                                         Communicator* parent, bool survives) {
  const ConfigRef settings = config();
  FSCCL_ASSIGN(const Transport* transport, context->transport_for(members));
  std::unique_ptr<Communicator> comm =
      unopened(std::move(context), std::move(members), name, options, parent);
  // The knowledge of the parent about memory and costs holds for its parts, but not for another
  // transport.
  const bool fresh =
      !parent || parent->engine().options().channel->traits().transport != transport->name();

  OpeningOfJob opening(*comm->context_, comm->members_, name,
                       earlier(comm->deadline(), options.made_by), parent, survives);
  EngineOptions engine;
  const std::vector<int32_t> pids = comm->find_processes(&engine);
  const bool reads =
      settings->single_copy != SingleCopy::kOff && (fresh || parent->engine().single_copy());
  LeavingWithoutMemory leaving(options, comm->rank_, comm->name_);
  ChannelRequest request = comm->request(opening, options, pids, reads, !fresh);
  request.writes = reads && (fresh || parent->engine().options().channel->can_write());
  Result<OpenedChannel> opened = transport->open(request);
  if (!opened.ok()) return opening.not_opened(opened.status());
  engine.channel = std::move(opened.value().channel);
  leaving.leaves(engine.channel);
  engine.first_tick = opened.value().first_tick;
  const std::vector<int> known_as = opening.known_as();
  const Startup startup = opening.startup(engine, comm->rank_, known_as);
  const Costs* const known = comm->context_->known_costs(comm->members_, transport->name());
  const bool measures =
      fresh && !known && comm->size() > 1 && (!comm->oversubscribed() || comm->size() <= kFewRanks);
  const int farthest = comm->context_->farthest(comm->members_), other = comm->rank_of(farthest);
  Status ready = check_slots(*engine.channel);
  if (ready.ok() && measures && (comm->rank_ == 0 || comm->rank_ == other))
    ready = reserve(startup);
  auto rules = comm->context_->rules();
  if (ready.ok() && !rules.ok()) ready = rules.take_status();
  ready = agree_to_begin(startup, *settings, std::move(ready), &engine.first_tick);
  if (!ready.ok() && !parent) tell_others(startup, ready);  // a parent's failure tells them already
  if (!ready.ok()) return opening.parent_failed() ? parent->engine().failure() : std::move(ready);
  comm->paths_ = parent && !fresh ? parent->paths_ : comm->find_paths(startup, &engine.first_tick);
  const Costs typical = comm->typical_costs_of(farthest);
  // Costs of a network are not kept, because they depend on both of its ends.
  std::optional<KeptCosts> kept;
  size_t ring_bytes = 0, slot_bytes = 0;
  engine.channel->slots(comm->rank_, &ring_bytes, &slot_bytes);
  if (measures && comm->rank_ == other && !comm->oversubscribed() &&
      !engine.channel->traits().mirrors)
    kept.emplace(transport->name(), comm->context_->link(comm->members_.front(), farthest),
                 slot_bytes);
  Costs costs = known      ? *known
                : !fresh   ? parent->collectives_->options().select.costs
                : measures ? calibrate(startup, other, typical, comm->oversubscribed(),
                                       &engine.first_tick, kept ? &*kept : nullptr)
                           : typical;
  costs.can_read = costs.can_read && engine.channel->can_read();
  costs.can_write = costs.can_read && engine.channel->can_write();
  costs.apply_to(engine.channel->traits().mirrors, comm->ranks_per_core_);
  engine.channel->rest();
  engine.numbers = options.known_as;
  comm->start(std::move(engine), costs, rules.take(), options.works_for);
  if (Status formed = comm->form_hosts(); !formed.ok())
    return opening.in_numbers_of_parent(std::move(formed));
  return comm;
}

// Makes what collectives in two levels (hierarchy.h) need, if some hosts have several ranks. A rank
// that cannot make these communicators leaves; it first tells the reason to the ranks that have
// made theirs.
Status Communicator::form_hosts() {
  const HostShape host_shape = context_->host_shape(members_);
  if (host_shape.hosts <= 1 || host_shape.hosts >= size() ||
      config()->hierarchy == HierarchyMode::kOff)
    return success();
  Result<Hosts*> hosts = this->hosts();
  if (!hosts.ok()) {
    engine().fail_all(hosts.status().error());
    return hosts.take_status();
  }
  hierarchy_ = std::make_unique<Hierarchy>(*this, *hosts.value());
  collectives_->set_hierarchy(hierarchy_.get());
  return success();
}

// Starts the engine on an open channel. A communicator for which this one works learns of a loss
// before it and knows the reason, because a rank may have ended because another one died.
void Communicator::start(EngineOptions engine, const Costs& costs,
                         std::shared_ptr<const std::vector<Rule>> rules, Engine* works_for) {
  const ConfigRef settings = config();
  engine.rank = rank_;
  engine.ranks = size();
  engine.oversubscribed = oversubscribed();
  engine.timeout_ms = timeout_ms_;
  engine.spin_ns = (settings->spin_us == kConfigAuto ? kDefaultSpinUs : settings->spin_us) * 1000;
  engine.slot_streaming_from = costs.slot_streaming_from();
  engine.side_by_side = costs.side_by_side;
  engine.copy_rate = costs.copy_per_byte;
  engine.name = name_;
  engine.arenas = &context_->arenas();
  engine.recorder = &context_->recorder();
  engine.recorded_as = context_->recorder().add(tag_, name_, rank_, size());
  engine.members = members_;
  engine.checksum = context_->checksum();
  engine.job = &context_->job();
  engine_ = std::make_unique<Engine>(std::move(engine));
  if (oversubscribed()) oversubscribed_communicators++;  // the destructor takes it back
  CollectiveOptions collectives;
  collectives.select.costs = costs;
  collectives.select.eager_bytes = settings->eager_bytes;
  collectives.select.always_read = settings->single_copy == SingleCopy::kOn;
  collectives.link = context_->link(members_.front(), context_->farthest(members_));
  collectives.path = path_name(*engine_->options().channel, paths_, collectives.link);
  collectives.select.rules = std::move(rules);
  collectives.select.native = context_->native_prices();
  collectives.select.host_shape = context_->host_shape(members_);
  collectives.select.only_slots = context_->checksum();
  const ChannelTraits& traits = engine_->options().channel->traits();
  collectives.select.signals_one = traits.signals_one;
  collectives.select.sockets = traits.sockets();
  collectives.cache_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE);
  collectives.last_cache_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE);
  collectives.streaming_is_asked = settings->streaming_bytes != kConfigAuto;
  collectives.streaming_bytes = collectives.streaming_is_asked
                                    ? static_cast<uint64_t>(settings->streaming_bytes)
                                    : default_streaming_bytes(collectives.last_cache_bytes);
  collectives_ = std::make_unique<Collectives>(*engine_, collectives);
  if (works_for) works_for->bind(*engine_);
  context_->add(this);
  metrics_ = std::make_unique<MetricsSource>(
      [this](MetricSamples& samples, std::string_view id) { tell(samples, id); });
}

}  // namespace fsccl
