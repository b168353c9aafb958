#include "job.h"

#include <algorithm>
#include <array>

#include "tests/unit/forwarding_channel.h"
#include "transports/mirror/node.h"
#include "transports/ucx/ucx.h"

namespace fsccl::sim {
namespace {

constexpr int64_t kLongestPauseNs = 5 * kSecond, kStoppedNs = 200 * kSecond;
constexpr int64_t kLongestSliceNs = 200 * kMillisecond;
constexpr size_t kArenaBytes = 256u << 10;

// A channel that splits a put in two. Channels allow several puts to one place, but no plan makes
// them.
class InPieces final : public testing::ForwardingChannel {
 public:
  explicit InPieces(const std::shared_ptr<Channel>& whole)
      : ForwardingChannel(whole, whole->traits()) {}
  void put(int peer, size_t at, const void* source, size_t bytes) override {
    const size_t first =
        bytes > 1 && World::current().chance(0.5) ? 1 + World::current().below(bytes - 1) : 0;
    if (first) inner->put(peer, at, source, first);
    inner->put(peer, at + first, static_cast<const std::byte*>(source) + first, bytes - first);
  }
  Result<OpenedChannel> pair(int from, int to) override {
    FSCCL_ASSIGN(OpenedChannel opened, inner->pair(from, to));
    opened.channel = std::make_unique<InPieces>(std::move(opened.channel));
    return opened;
  }
};

}  // namespace

Job::Job(uint64_t seed, bool traced)
    : world_(seed, traced),
      setting_(random_setting(world_)),
      program_(random_program(
          world_, {setting_.ranks, setting_.ops,
                   world_.chance(0.3) ? setting_.slot_bytes * 6 : setting_.slot_bytes / 2})),
      machine_{world_,
               setting_.slot_bytes,
               setting_.latest_ns,
               setting_.can_read,
               [this](int r) { wake(r); },
               [this](int r) { return rank(r).dead; },
               [this](int r) { return speaks(r); },
               setting_.damage},
      ranks_(static_cast<size_t>(setting_.ranks)) {
  auto rules = parse_rules(setting_.rules, "the seed");
  if (!rules.ok()) break_down(rules.status().text());
  if (rules.ok() && !setting_.rules.empty())
    setting_.select.rules = std::make_shared<const std::vector<Rule>>(rules.take());
  if (setting_.arenas) make_arenas();
  if (setting_.network) open_network();
  if (!broken_) open_channels();
}

// Makes an arena for each rank, and maps those of all on each.
void Job::make_arenas() {
  std::vector<int> all;
  for (int r = 0; r < setting_.ranks; r++) {
    all.push_back(r);
    rank(r).arena = std::make_unique<Arena>(kArenaBytes);
  }
  for (int r = 0; r < setting_.ranks; r++)
    for (int q = 0; q < setting_.ranks; q++)
      if (Status added = rank(r).arenas.add(kFirstArena + static_cast<uint32_t>(q),
                                            rank(q).arena->memory.data(), kArenaBytes, all);
          !added.ok())
        break_down(added.text());
}

Job::~Job() {
  for (Rank& one : ranks_) {
    one.pairs.clear();
    one.collectives.reset();
    one.engine.reset();
  }
  for (Rank& one : ranks_) one.node.reset();
}

// Makes each rank join with the endpoint addresses of all.
void Job::open_network() {
  network_ = std::make_unique<Network>(
      world_, setting_.ranks, setting_.weather, [this](int r) { wake(r); },
      [this](int r) { return speaks(r); });
  static constexpr std::array<unsigned char, 32> kKey{1, 2, 3};
  std::vector<uint8_t> endpoints(static_cast<size_t>(setting_.ranks) * kEndpointRoom);
  for (int r = 0; r < setting_.ranks; r++) {
    Result<std::unique_ptr<TransportNode>> joined =
        ucx_transport()->join({sizeof(fsccl_transport_job_t), r, setting_.ranks, kKey.data(),
                               setting_.checksum ? 1 : 0, nullptr});
    if (!joined.ok()) return break_down(joined.status().text());
    rank(r).node = joined.take();
    const std::vector<uint8_t>& mine = rank(r).node->endpoint();
    std::copy(mine.begin(), mine.end(), &endpoints[static_cast<size_t>(r) * kEndpointRoom]);
  }
  for (Rank& one : ranks_)
    if (const Status connected = one.node->connect(endpoints.data(), kEndpointRoom);
        !connected.ok())
      return break_down(connected.text());
}

void Job::open_channels() {
  std::vector<int32_t> members;
  for (int r = 0; r < setting_.ranks; r++) members.push_back(r);
  for (int r = 0; r < setting_.ranks && !broken_; r++) {
    EngineOptions options = engine_options(r);
    if (!setting_.network) rank(r).node = std::make_unique<SharedNode>(machine_);
    ChannelRequest request;
    request.rank = r;
    request.ranks = setting_.ranks;
    request.node = rank(r).node.get();
    request.members = members;
    request.meeting = request.tag = 77;
    request.slot_bytes = setting_.slot_bytes;
    Result<OpenedChannel> opened =
        (setting_.network ? ucx_transport() : shared_transport())->open(request);
    if (!opened.ok()) return break_down(opened.status().text());
    options.channel = std::move(opened.value().channel);
    if (setting_.network && setting_.pieces)
      options.channel = std::make_shared<InPieces>(options.channel);
    options.first_tick = opened.value().first_tick;
    rank(r).engine = std::make_unique<Engine>(std::move(options));
    rank(r).engine->attended = true;  // act() attends to the engine, not the service thread
    rank(r).collectives = std::make_unique<Collectives>(*rank(r).engine, collective_options());
    plan(r, world_.now() + world_.between(0, kMillisecond));
  }
}

EngineOptions Job::engine_options(int r) const {
  EngineOptions options;
  options.rank = r;
  options.ranks = setting_.ranks;
  options.timeout_ms = kTimeoutMs;
  options.name = "simulated";
  options.checksum = setting_.checksum;
  options.arenas = &ranks_[static_cast<size_t>(r)].arenas;
  for (int q = 0; q < setting_.ranks; q++) options.members.push_back(q);
  options.same_process.assign(static_cast<size_t>(setting_.ranks), setting_.one_process);
  options.same_process[static_cast<size_t>(r)] = true;
  return options;
}

CollectiveOptions Job::collective_options() const {
  CollectiveOptions options;
  options.select = setting_.select;
  options.streaming_bytes = setting_.streaming_bytes;
  options.cache_bytes = setting_.cache_bytes;
  return options;
}

void Job::plan_trouble() {
  const auto anyone = [this] {
    return static_cast<int>(world_.below(static_cast<uint64_t>(setting_.ranks)));
  };
  const int64_t some_time_ns = world_.between(0, (setting_.network ? 10 : 2) * kMillisecond);
  for (int i = 0; i < setting_.deaths; i++) {
    const int r = anyone();
    if (world_.chance(0.5))
      rank(r).words_left = static_cast<int>(world_.below(200));
    else
      world_.after(some_time_ns, [this, r] { die(r); });
  }
  if (setting_.trouble == Trouble::stopped)
    world_.after(some_time_ns, [this, r = anyone()] {
      world_.note("rank {} is stopped", r);
      stopped_ns_ = world_.now();
      rank(r).asleep_until_ns = stopped_ns_ + kStoppedNs;
      paused_ = true;
    });
  if (setting_.trouble == Trouble::cut) {
    const int a = anyone(),
              b = (a + 1 +
                   static_cast<int>(world_.below(static_cast<uint64_t>(setting_.ranks - 1)))) %
                  setting_.ranks;
    cut_ = {a, b};
    world_.after(some_time_ns, [this, a, b] {
      world_.note("nothing passes between {} and {} any more", a, b);
      network_->cut(a, b);
    });
  }
  if (setting_.trouble == Trouble::aborted)
    world_.after(some_time_ns, [this, r = anyone()] { abort(r); });
  if (setting_.trouble != Trouble::mismatch) return;
  // All ranks meet in a barrier afterwards, so no rank can end well.
  program_.insert(program_.end(), 2, Op{});
  do mismatch_at_ = world_.below(program_.size() - 1);
  while (program_[mismatch_at_].code == OpCode::send);
  mismatches_ = anyone();
}

// ---- who acts when

void Job::plan(int r, int64_t ns) {
  Rank& me = rank(r);
  if (me.planned_ns <= ns) return;
  me.planned_ns = ns;
  world_.at(ns, [this, r, plan = ++me.plan] {
    if (rank(r).plan != plan) return;
    rank(r).planned_ns = INT64_MAX;
    act(r);
  });
}

void Job::wake(int r) { plan(r, world_.now() + world_.between(0, 20 * kMicrosecond)); }

bool Job::speaks(int r) {
  Rank& me = rank(r);
  if (me.words_left > 0 && --me.words_left == 0) die(r);
  return !me.dead;
}

void Job::act(int r) {
  Rank& me = rank(r);
  if (me.dead) return;
  if (me.asleep_until_ns > world_.now()) return plan(r, me.asleep_until_ns);
  // Over a network, a rank whose program is over still polls its node, as the node's thread would.
  if (me.over) {
    if (!setting_.network) return;
    static_cast<mirror::Node*>(me.node.get())->poll(-1);
    if (network_->waiting(r)) wake(r);
    return;
  }
  if (world_.chance(setting_.pauses)) {
    me.asleep_until_ns = world_.now() + world_.between(0, kLongestPauseNs);
    paused_ = true;
    world_.note("rank {} pauses", r);
    return plan(r, me.asleep_until_ns);
  }
  bool moved = look(r);
  while (!me.dead && !me.error && me.next < program_.size() &&
         me.flying.size() < static_cast<size_t>(setting_.depth) && world_.chance(0.7)) {
    issue(r);
    moved = true;
  }
  if (me.dead) return;
  if (me.flying.empty() && (me.error || me.next == program_.size())) return end(r);
  me.slice_ns = moved ? kSliceNs : std::min(me.slice_ns + me.slice_ns / 8, kLongestSliceNs);
  plan(r, world_.now() + (moved ? world_.between(0, 50 * kMicrosecond) : me.slice_ns));
  if (network_ && network_->waiting(r)) wake(r);
}

void Job::issue(int r) {
  Rank& me = rank(r);
  const size_t number = me.next++;
  Op op = program_[number];
  if (number == mismatch_at_ && r == mismatches_)
    op = differing(world_, op, setting_.ranks), differs_ = op.code;
  if (!op.concerns(r)) return;
  Collectives* collectives = me.collectives.get();
  if (op.code == OpCode::send) {
    Pair* const pair = pair_of(r, op.root, op.to);
    if (!pair) return;
    collectives = pair->collectives.get();
  }
  me.calls.push_back(std::make_unique<Call>(world_, op, number, r, setting_.ranks, me.arena.get()));
  Call& call = *me.calls.back();
  world_.note("rank {} calls {}: {}", r, number, op.text());
  const Status status = call.start(*collectives, me.lists);
  if (status.ok()) return me.flying.push_back({&collectives->engine(), &call, number});
  if (!collectives->engine().failed())
    break_down(fmt::format("rank {} may not call {}: {}", r, op.text(), status.text()));
  me.engine->look_for_failure();
  note_failure(r);
}

// Records the error that the rank's caller gets.
void Job::note_failure(int r) {
  Rank& me = rank(r);
  if (!me.engine->failed() || me.error) return;
  me.error = me.engine->failure().error();
  const std::string_view text(me.error->text);
  world_.note("rank {} has failed with error {}, peer {}: {}", r, static_cast<int>(me.error->code),
              me.error->peer,
              // The sums may cover addresses, which do not follow from the seed.
              text.substr(0, text.find("CRC32C")));
}

Job::Pair* Job::pair_of(int r, int from, int to) {
  Rank& me = rank(r);
  Pair& pair = me.pairs[{from, to}];
  if (pair.engine) return &pair;
  EngineOptions options = engine_options(r);
  options.inside = me.engine.get();
  options.numbers = options.members = {from, to};
  options.rank = r == from ? 0 : 1;
  options.ranks = 2;
  options.same_process = {r == from || setting_.one_process, r == to || setting_.one_process};
  Result<OpenedChannel> opened = me.engine->options().channel->pair(from, to);
  if (!opened.ok()) {
    break_down(opened.status().text());
    return nullptr;
  }
  options.channel = std::move(opened.value().channel);
  options.first_tick = opened.value().first_tick;
  pair.engine = std::make_unique<Engine>(std::move(options));
  pair.engine->attended = true;
  pair.collectives = std::make_unique<Collectives>(*pair.engine, collective_options());
  for (const auto& [lost, left] : me.lost)
    if (lost == from || lost == to) pair.engine->lost(lost == from ? 0 : 1, left);
  return &pair;
}

// Moves an operation on like a caller who tests it, or like the service thread, which also notices
// what ends a wait.
void Job::move_on(Rank& me, Engine& engine) {
  if (engine.failed()) return;
  if (world_.chance(0.5) || me.slice_ns > kSliceNs) {
    fsccl_transport_word_t word{};
    (void)engine.try_progress(&word);
  } else {
    fsccl_status_t state;
    (void)engine.test(engine.submitted(), &state).ok();
  }
}

bool Job::look(int r) {
  Rank& me = rank(r);
  std::vector<Engine*> engines;
  for (const Flying& one : me.flying)
    if (std::find(engines.begin(), engines.end(), one.engine) == engines.end())
      engines.push_back(one.engine);
  for (Engine* engine : engines) move_on(me, *engine);
  if (std::find(engines.begin(), engines.end(), me.engine.get()) == engines.end())
    me.engine->look_for_failure();
  if (me.dead) return false;
  const size_t before = me.flying.size();
  std::erase_if(me.flying, [&](const Flying& one) {
    if (one.engine->completed() >= one.call->sequence) {
      operations_++;
      world_.note("rank {} has completed {}", r, one.op);
      if (const auto problem = checked(one.op) ? one.call->problem() : std::nullopt)
        break_down(*problem);
      return true;
    }
    if (one.engine->failed()) one.call->give_back();
    return one.engine->failed();
  });
  note_failure(r);
  return me.flying.size() != before;
}

}  // namespace fsccl::sim
