// How a communicator comes to be: the transport opens its channel, with the job's help; the ranks
// agree that all can begin, measure what is not known, and start the engine.
#include <unistd.h>

#include <algorithm>

#include "base/config.h"
#include "base/hash.h"
#include "base/log.h"
#include "comm/agreement.h"
#include "comm/communicator.h"
#include "comm/opened_channel.h"
#include "engine/sums.h"
#include "select/calibration.h"

namespace fsccl {
namespace {

// Slots are large where ranks share cores, which then go through fewer rounds; not for many ranks,
// whose slots would take too much memory in all.
constexpr size_t kLargeSlotBytes = 256u << 10;
constexpr int kFewRanks = 16;
constexpr size_t kLeastChosenSlotBytes = 16u << 10;  // the smallest that transports choose
constexpr int64_t kNewsMs = 300, kNewsNapNs = 1'000'000;
// A wait spins for a few context switches: longer only burns the core of a peer that shares it.
constexpr int64_t kDefaultSpinUs = 20;

// From a quarter of the last cache on, streaming stores gained in every kernel that was measured;
// below, and where caches are larger than any working set that is used again, they do not.
uint64_t default_streaming_bytes() {
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return std::clamp<uint64_t>(cache > 0 ? static_cast<uint64_t>(cache) / 4 : 0, 8u << 20,
                              24u << 20);
}

std::atomic<uint64_t> communicators_made{0};

// Tells the others of the channel why this rank leaves it: those who have begun already would take
// its leaving for the failure, and name this rank. Differing settings every rank finds by itself.
void tell_others(const Meeting& meeting, const Status& why) {
  const Error& error = why.error();
  if (error.code != FSCCL_ERR_PEER_DEAD && error.code != FSCCL_ERR_TIMEOUT &&
      error.code != FSCCL_ERR_LINK)
    return;
  fsccl_transport_failure_t board{};
  board.code = error.code;
  board.rank = meeting.rank;
  board.peer = error.peer;
  error.text.copy(board.text, sizeof board.text - 1);
  meeting.transport->fail(meeting.channel, &board);
}

Status reserve(const Meeting& meeting) {
  char error[512] = "";
  const fsccl_status_t code = meeting.transport->reserve(meeting.channel, error, sizeof error);
  return code == FSCCL_OK ? success()
                          : fail(code, "rank {}: {}", meeting.shown(meeting.rank), error);
}

Deadline earlier(Deadline a, Deadline b) { return a.at_ns() < b.at_ns() ? a : b; }

}  // namespace

// The transport's calls back into the job, for one channel.
struct Communicator::Exchange {
  JobContext& context;
  const std::vector<int>& members;
  uint64_t name;  // under which they meet
  Deadline deadline;
  Communicator* parent;   // null if there is none
  bool survives;          // else the parent's end ends the attempt
  Status problem;         // status of the last call
  int32_t concerns = -1;  // the rank that the transport's error concerns, by the channel's numbers
  bool offers = false;

  ~Exchange() {
    if (offers) context.job().withdraw_fd(name);
  }
  bool parent_failed() {
    if (!parent || survives) return false;
    parent->engine().look_for_failure();
    return parent->engine().failed();
  }
  // Why the channel will not be opened any more, with a number of the job; success while nothing
  // speaks against it.
  Status why_cancelled() {
    if (parent_failed()) return parent->engine().failure();
    const int dead = context.first_dead(members);
    if (dead < 0) return success();
    return fail(FSCCL_ERR_PEER_DEAD, "rank {} of the job died", dead)
        .with_peer(context.job().rank(), dead);
  }
  bool cancelled() { return context.first_dead(members) >= 0 || parent_failed(); }
  int failed(Status status, char* error, size_t capacity) {
    problem = std::move(status);
    report(problem, error, capacity);
    return -1;
  }
  static int publish(void* self, int fd, char* error, size_t capacity) {
    auto& exchange = *static_cast<Exchange*>(self);
    Status status = exchange.context.job().publish_fd(exchange.name, fd);
    exchange.offers = status.ok();
    return status.ok() ? 0 : exchange.failed(std::move(status), error, capacity);
  }
  static int fetch(void* self, int rank, char* error, size_t capacity) {
    auto& exchange = *static_cast<Exchange*>(self);
    Result<Fd> fd = exchange.context.job().fetch_fd(
        exchange.members[static_cast<size_t>(rank)], exchange.name, exchange.deadline,
        [&exchange] { return exchange.why_cancelled(); });
    return fd.ok() ? fd.value().release() : exchange.failed(fd.take_status(), error, capacity);
  }
  // The same as why_cancelled(), with the numbers that messages have.
  static Status why_lost(void* self) {
    return static_cast<Exchange*>(self)->explain(FSCCL_ERR_PEER_DEAD,
                                                 "a rank was lost while the communicator was made");
  }
  static int cancelled(void* self) { return static_cast<Exchange*>(self)->cancelled(); }

  // To those who read messages.
  int known_as(int job_rank) const { return parent ? parent->rank_of(job_rank) : job_rank; }
  std::vector<int> known_as() const {
    std::vector<int> all;
    for (const int member : members) all.push_back(known_as(member));
    return all;
  }
  Meeting meeting(const EngineOptions& engine, int rank, const std::vector<int>& known_as) {
    return {engine.transport, engine.channel, rank, static_cast<int>(members.size()),
            deadline.at_ns(), cancelled,      this, known_as.data(),
            why_lost};
  }
  // An error of the new communicator, whose numbers nobody else knows: its peer becomes a number of
  // the parent.
  Status in_numbers_of_parent(Status status) const {
    const int peer = status.error().peer;
    if (!parent || peer < 0 || peer >= static_cast<int>(members.size())) return status;
    const int known = known_as(members[static_cast<size_t>(peer)]);
    return fail(status.code(), "{}, which is rank {} of the communicator that it is made of",
                status.text(), known)
        .with_peer(known_as(context.job().rank()), known);
  }
  // Why no channel was opened, as far as it is known better here than to the transport.
  Status explain(fsccl_status_t code, const char* text) {
    if (code == FSCCL_ERR_PEER_DEAD || (!problem.ok() && problem.code() == FSCCL_ERR_PEER_DEAD)) {
      // A rank that another one waited for may have ended because a third one died, of which the
      // job tells in a moment.
      const auto told = [this] { return context.first_dead(members) >= 0; };
      wait_until(
          told, Deadline::in_ms(kNewsMs), [this] { return parent_failed(); }, Naps(kNewsNapNs));
      if (!parent_failed() && told()) problem = why_cancelled();
    }
    if (parent_failed()) return parent->engine().failure();
    if (problem.ok() && concerns >= 0 && code == FSCCL_ERR_TIMEOUT)
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
fsccl_transport_request_t Communicator::request(Exchange& exchange,
                                                const CommunicatorOptions& options,
                                                const std::vector<int32_t>& pids, bool reads,
                                                bool known) const {
  const int64_t slot_bytes = config()->slot_bytes;
  fsccl_transport_request_t request{};
  request.size = sizeof request;
  request.rank = rank_;
  request.ranks = size();
  request.node = context_->node();
  request.members = members_.data();
  request.pids = pids.data();
  request.meeting = exchange.name;
  request.tag = tag_;
  request.deadline_ns = exchange.deadline.at_ns();
  request.single_copy = reads ? 1 : 0;
  request.known = known ? 1 : 0;
  request.slot_bytes = slot_bytes != kConfigAuto                 ? static_cast<size_t>(slot_bytes)
                       : oversubscribed() && size() <= kFewRanks ? kLargeSlotBytes
                                                                 : 0;
  // With a line of every rank there is room for its sums.
  if (const size_t least =
          slot_bytes_with_sums(static_cast<size_t>(size()) * sizeof(fsccl_transport_line_t));
      context_->checksum() && (request.slot_bytes || least > kLeastChosenSlotBytes))
    request.slot_bytes = std::max(request.slot_bytes, least);
  request.concerns = &exchange.concerns;
  request.context = &exchange;
  request.publish_fd = Exchange::publish;
  request.fetch_fd = Exchange::fetch;
  request.cancelled = Exchange::cancelled;
  request.known_as = options.known_as.empty() ? nullptr : options.known_as.data();
  request.describe = [](const fsccl_transport_line_t* line, char* text, size_t capacity) {
    const std::string words = describe(claim_of(*line));
    text[words.copy(text, capacity - 1)] = '\0';
  };
  return request;
}

// Where nothing is measured.
Costs Communicator::typical_costs_of(int farthest) const {
  Costs costs = typical_costs(context_->link(members_.front(), farthest));
  costs.can_read = true;
  return costs;
}

// Where the transport has a choice of ways, and what is found says something of them.
Paths Communicator::find_paths(const Meeting& meeting, uint32_t* tick) const {
  const fsccl_transport_ops_t& transport = *meeting.transport;
  if (size() == 1 || oversubscribed() || !transport.path || !transport.path(meeting.channel, 1))
    return {};
  std::vector<topo::LinkClass> links;
  for (const int member : members_) links.push_back(context_->link(members_.front(), member));
  const Paths paths = fsccl::find_paths(meeting, links, tick);
  for (int peer = 0; peer < size(); peer++)
    if (peer != rank_)
      transport.take_path(
          meeting.channel, peer,
          paths[static_cast<size_t>(context_->link(job_rank(rank_), job_rank(peer)))]);
  return paths;
}

// The processes of the members; the engine learns which of them are threads of this process.
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

Result<std::unique_ptr<Communicator>> Communicator::open(std::shared_ptr<JobContext> context,
                                                         std::vector<int> members, uint64_t name,
                                                         const CommunicatorOptions& options,
                                                         Communicator* parent, bool survives) {
  const ConfigRef settings = config();
  FSCCL_ASSIGN(const fsccl_transport_ops_t* transport, context->transport_for(members));
  std::unique_ptr<Communicator> comm(new Communicator);
  comm->context_ = std::move(context);
  comm->members_ = std::move(members);
  comm->rank_ = comm->rank_of(comm->context_->job().rank());
  comm->tag_ = name;
  for (const int member : comm->members_)
    comm->tag_ = mix_hash(comm->tag_, static_cast<uint64_t>(member));
  comm->timeout_ms_ = options.timeout_ms ? options.timeout_ms : settings->timeout_ms;
  const uint64_t number = communicators_made++;
  comm->name_ = options.name.empty() ? fmt::format("comm {}", number) : options.name;

  comm->ranks_per_core_ = std::max(parent ? parent->ranks_per_core_ : 0,
                                   comm->context_->ranks_per_core(comm->members_));
  // The parent's knowledge of memory and of costs holds for its parts, but not for another
  // transport.
  const bool fresh = !parent || parent->engine().options().transport != transport;

  Exchange exchange{
      *comm->context_, comm->members_, name, earlier(comm->deadline(), options.made_by),
      parent,          survives,       {}};
  EngineOptions engine;
  const std::vector<int32_t> pids = comm->find_processes(&engine);
  const bool reads =
      settings->single_copy != SingleCopy::kOff && (fresh || parent->engine().single_copy());
  const fsccl_transport_request_t request = comm->request(exchange, options, pids, reads, !fresh);

  engine.transport = transport;
  char error[512] = "";
  const fsccl_status_t code =
      engine.transport->open(&request, &engine.channel, &engine.first_tick, error, sizeof error);
  if (code != FSCCL_OK) return exchange.explain(code, error);
  const OpenedChannel opened{transport, comm->engine_, engine.channel};
  const std::vector<int> known_as = exchange.known_as();
  const Meeting meeting = exchange.meeting(engine, comm->rank_, known_as);
  const Costs* const known = comm->context_->known_costs(comm->members_, transport->name);
  const bool measures =
      fresh && !known && comm->size() > 1 && (!comm->oversubscribed() || comm->size() <= kFewRanks);
  const int farthest = comm->context_->farthest(comm->members_), other = comm->rank_of(farthest);
  Status ready;
  if (measures && (comm->rank_ == 0 || comm->rank_ == other)) ready = reserve(meeting);
  auto rules = comm->context_->rules();
  if (ready.ok() && !rules.ok()) ready = rules.take_status();
  ready = agree_to_begin(meeting, *settings, std::move(ready), &engine.first_tick);
  if (!ready.ok() && !parent) tell_others(meeting, ready);  // else the failure of the parent does
  if (!ready.ok()) return exchange.parent_failed() ? parent->engine().failure() : std::move(ready);
  comm->paths_ = parent && !fresh ? parent->paths_ : comm->find_paths(meeting, &engine.first_tick);
  const Costs typical = comm->typical_costs_of(farthest);
  Costs costs = known    ? *known
                : !fresh ? parent->collectives_->options().select.costs
                : measures
                    ? calibrate(meeting, other, typical, comm->oversubscribed(), &engine.first_tick)
                    : typical;
  costs.can_read = costs.can_read && engine.transport->can_read(engine.channel) != 0;
  costs.apply_to(transport->put != nullptr, comm->ranks_per_core_);
  if (transport->rest) transport->rest(engine.channel);
  engine.known_as = options.known_as;
  comm->start(std::move(engine), costs, rules.take(), options.works_for);
  if (Status formed = comm->form_hosts(); !formed.ok())
    return exchange.in_numbers_of_parent(std::move(formed));
  return comm;
}

// Where some hosts have several ranks, collectives may go by hosts. A rank that cannot form them
// leaves; those who have formed theirs hear the reason before it does.
Status Communicator::form_hosts() {
  const Spread spread = context_->spread(members_);
  if (spread.hosts <= 1 || spread.hosts >= size() || config()->hierarchy == HierarchyMode::kOff)
    return success();
  Result<Hosts*> hosts = this->hosts();
  if (!hosts.ok()) {
    engine().fail_all(hosts.status().error());
    return hosts.take_status();
  }
  hierarchy_ = std::make_unique<Hierarchy>(*this, *hosts.value());
  collectives_->by_hosts(hierarchy_.get());
  return success();
}

// Starts with an open channel. The communicator that this one works for hears of a loss first, and
// knows the reason: a rank may have ended because another died.
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
  CollectiveOptions collectives;
  collectives.select.costs = costs;
  collectives.select.eager_bytes = settings->eager_bytes;
  collectives.select.always_read = settings->single_copy == SingleCopy::kOn;
  collectives.link = context_->link(members_.front(), context_->farthest(members_));
  collectives.path = path_name(*engine_->options().transport, engine_->options().channel, paths_,
                               collectives.link);
  collectives.select.rules = std::move(rules);
  collectives.select.native = context_->native_prices();
  collectives.select.spread = context_->spread(members_);
  collectives.select.only_slots = context_->checksum();
  collectives.streaming_bytes = settings->streaming_bytes == kConfigAuto
                                    ? default_streaming_bytes()
                                    : static_cast<uint64_t>(settings->streaming_bytes);
  collectives.cache_bytes = static_cast<uint64_t>(std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 0L));
  collectives_ = std::make_unique<Collectives>(*engine_, collectives);
  if (oversubscribed()) oversubscribed_communicators++;
  if (works_for) works_for->bind(*engine_);
  context_->add(this);
  metrics_ = std::make_unique<MetricsSource>(
      [this](MetricSamples& samples, std::string_view id) { tell(samples, id); });
}

}  // namespace fsccl
