#include "pool/host/host_pool.h"

#include <algorithm>

#include "base/config.h"
#include "base/descriptors.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/round_up.h"
#include "comm/consensus.h"
#include "comm/together.h"
#include "engine/progress.h"
#include "pool/host/history_change.h"
#include "pool/host/pool_report.h"

namespace fsccl {
namespace {

constexpr uint64_t kGrowth = PoolMemory::kGrowth;

// The vote of a rank. All ranks use the smallest value of each member.
struct Vote {
  uint64_t limit = 0, sparse = 0;
};

// The terms that rank 0 decides for all.
struct Terms {
  uint64_t part_bytes;
  uint32_t arena_id;
  // Says how rank 0 has made the arena: of the library's own memory, or of an outside source.
  enum : uint16_t { failed, own, outside } made;
  uint16_t debug;
  uint64_t file_offset;  // the arena's offset in its file
};
static_assert(sizeof(Terms) <= kInlineBytes);

// Returns an error on all ranks if one has failed (all_ok() of consensus.h), and else the minimum
// of their votes.
Result<Vote> agree(Communicator& comm, Status mine, Vote vote, const char* what) {
  FSCCL_TRY(all_ok(comm, std::move(mine), what));
  FSCCL_ASSIGN(const std::vector<Vote> all, all_gather(comm, vote));
  for (const Vote& of : all)
    vote = {std::min(vote.limit, of.limit), std::min(vote.sparse, of.sparse)};
  return vote;
}

uint64_t tag_of(const Communicator& comm, uint32_t arena_id) {
  return mix_hash(comm.tag(), uint64_t{arena_id} << 32 | 0x706f6f6c);
}

uint64_t control_bytes(const Communicator& comm, bool outside) {
  const uint64_t lines = static_cast<uint64_t>(comm.size()) * sizeof(Milestone);
  // Files of huge pages are mapped in whole pages.
  return outside ? round_up(lines, kGrowth) : lines;
}

// Returns an id for an arena of this rank that no living arena has. An id has 12 bits for the
// number of a rank's arena, so numbers come again after 4096 arenas.
uint32_t free_arena_id(Communicator& comm) {
  JobContext& context = comm.context();
  uint32_t id = 0;
  do
    id = kFirstArena + (static_cast<uint32_t>(comm.job_rank(0)) << 12) +
         context.next_arena_number() % 4096;
  while (context.arenas().has(id));
  return id;
}

// Rank 0 makes the arena, offers its descriptor to the other ranks, and decides the terms. `limit`
// is the limit of a rank's bytes. `space` is the size of a part in addresses if addresses are
// plentiful.
Result<HostArena> make_arena(Communicator& comm, Result<PoolSource>& source, uint64_t limit,
                             uint64_t space, const Limits& limits, Terms* terms) {
  const int64_t region = config()->pool_region_bytes;
  const bool outside = source.ok() && source.value().outside();
  // Addresses beyond the limit let slots lie apart. If addresses are limited, too (ulimit -v), a
  // part gets only as many addresses as bytes.
  const bool narrow = outside || limits.address_space_bytes.value != kUnlimited;
  if (narrow) space = limit;
  terms->part_bytes =
      round_up(region == kConfigAuto ? space : static_cast<uint64_t>(region) / 3, kGrowth);
  terms->arena_id = free_arena_id(comm);
  Result<HostArena> made =
      source.ok() ? source.value().make_arena(comm.size(), control_bytes(comm, outside),
                                              3 * terms->part_bytes)
                  : source.status().clone();
  if (made.ok() && made.value().fd() >= 0) {
    const Status offered =
        comm.context().job().publish_fd(tag_of(comm, terms->arena_id), made.value().fd());
    if (!offered.ok()) made = offered.clone();
  }
  terms->made = !made.ok() ? Terms::failed : outside ? Terms::outside : Terms::own;
  if (outside && made.ok()) terms->file_offset = made.value().file_begin();
  return made;
}

Result<HostArena> open_arena(Communicator& comm, const Terms& terms, Result<HostArena> made,
                             const Result<PoolSource>& source) {
  if (comm.rank() == 0) return made;
  if (!source.ok()) return source.status().clone();
  if (!terms.made) return fail(FSCCL_ERR_OUT_OF_MEMORY, "rank 0 could not make the pool's arena");
  const Engine::RecordedWait recorded(comm.engine(), 0, recording::Duty::give_descriptor);
  FSCCL_ASSIGN(Fd fd, comm.context().job().fetch_fd(comm.job_rank(0), tag_of(comm, terms.arena_id),
                                                    comm.deadline(),
                                                    [&comm] { return comm.engine().intact(); }));
  const bool outside = terms.made == Terms::outside;
  if (source.value().outside() != outside)
    return fail(
        FSCCL_ERR_INVALID_ARGUMENT,
        "rank 0 of this host gave its pool {} source from outside, and this rank {}: all or none",
        outside ? "a" : "no", outside ? "none" : "one");
  const uint64_t control = control_bytes(comm, outside);
  return outside ? HostArena::adopt(std::move(fd), terms.file_offset, comm.size(), control,
                                    3 * terms.part_bytes)
                 : HostArena::open(std::move(fd), comm.size(), control, 3 * terms.part_bytes);
}

uint64_t arena_bytes_of(const HostArena& arena, const Communicator& comm) {
  return static_cast<uint64_t>(arena.region(comm.size()) - arena.control());
}

Status same_debug(bool debug, const Terms& terms) {
  if (debug == (terms.debug != 0)) return success();
  return fail(FSCCL_ERR_MISMATCH,
              "debug mode of the pool is {} here and not so on rank 0: all ranks alike",
              debug ? "on" : "off");
}

Status watch_slots(const HostArena& arena, const Communicator& comm, const char* pool,
                   std::unique_ptr<SlotWatch>* watch) {
  FSCCL_ASSIGN(*watch, SlotWatch::create(
                           arena, arena_bytes_of(arena, comm),
                           fmt::format("pool '{}' of rank {}", pool ? pool : "pool", comm.rank())));
  return success();
}

}  // namespace

HostPool::HostPool(Communicator& comm, std::byte* control)
    : Pool(comm), ledger_(reinterpret_cast<Milestone*>(control) + comm.rank()) {}

// If the communicator has several hosts, each host has a pool of its own, because only the ranks of
// a host can map an arena.
Result<std::unique_ptr<HostPool>> HostPool::create(Communicator& comm,
                                                   const fsccl_pool_config_t& config,
                                                   Result<std::shared_ptr<MemorySource>> given) {
  FSCCL_TRY(config_status());
  FSCCL_TRY(all_ok(comm, check_descriptors(kDescriptorsToMake, "make a pool"),
                   "open the files of a pool"));
  Result<PoolSource> source = config.dry_run && given.ok() ? Result<PoolSource>(PoolSource{})
                                                           : PoolSource::of(std::move(given));
  if (comm.one_host()) return create_on_host(comm, comm, config, std::move(source));
  constexpr uint64_t kTag = 0x706f6f6c;
  FSCCL_ASSIGN(std::unique_ptr<Communicator> host,
               comm.part(comm.ranks_here(), kTag, "ranks of this host"));
  Together together(comm);  // ends before the communicator of the host
  together.begin();
  FSCCL_ASSIGN(std::unique_ptr<HostPool> pool,
               create_on_host(*host, comm, config, std::move(source)));
  pool->host_ = std::move(host);
  pool->whole_ = &comm;
  comm.dependents++;
  return pool;
}

// Makes the pool of one host. `whole` is the communicator of all hosts. The pools of all hosts have
// the same limit, because they take the same slots for the units that they share.
Result<std::unique_ptr<HostPool>> HostPool::create_on_host(Communicator& comm, Communicator& whole,
                                                           const fsccl_pool_config_t& config,
                                                           Result<PoolSource> source) {
  const ConfigRef settings = fsccl::config();
  const Limits limits = read_limits();
  const uint64_t memory = std::min(limits.memory_bytes.value, uint64_t{1} << 40);
  uint64_t limit =
      config.limit_bytes ? config.limit_bytes : static_cast<uint64_t>(settings->pool_limit_bytes);
  if (!limit) limit = std::max<uint64_t>(memory / 2, 64u << 20);

  const bool debug = config.debug != 0 || settings->pool_debug;
  Terms terms{.debug = debug};
  Result<HostArena> made = fail(FSCCL_ERR_INTERNAL, "no arena");
  if (comm.rank() == 0)
    made = make_arena(comm, source, limit, std::max(limit, memory), limits, &terms);
  FSCCL_ASSIGN(terms, from_rank(comm, 0, terms));
  Result<HostArena> arena = open_arena(comm, terms, std::move(made), source);
  Result<std::unique_ptr<Journal>> journal = pool_report::open_journal(*settings, comm);
  Status ready = !arena.ok()     ? arena.take_status()
                 : !journal.ok() ? journal.take_status()
                                 : same_debug(debug, terms);
  if (ready.ok()) ready = comm.context().arenas().check_room();
  std::unique_ptr<SlotWatch> watch;
  if (ready.ok() && debug && !config.dry_run && terms.made == Terms::own)
    ready = watch_slots(arena.value(), comm, config.name, &watch);
  const bool may_be_sparse = source.ok() && HostPool::may_be_sparse(comm, source.value());
  const Result<Vote> common =
      agree(whole, std::move(ready), {.limit = limit, .sparse = may_be_sparse},
            "make or map the pool's arena as the first rank of its host does, or open its log");
  if (comm.rank() == 0) comm.context().job().withdraw_fd(tag_of(comm, terms.arena_id));
  if (!common.ok()) return common.status().clone();

  auto mapped = std::make_unique<HostArena>(arena.take());
  std::unique_ptr<HostPool> pool(new HostPool(comm, mapped->control()));
  comm.dependents++;
  pool->source_ = source.take();
  pool->arena_ = std::move(mapped);
  pool->journal_ = journal.take();
  pool->arena_->set_huge_pages(settings->huge_pages == HugePages::kAdvise);
  pool->name_ = config.name ? config.name : "pool";
  pool->arena_id_ = terms.arena_id;
  pool->part_bytes_ = terms.part_bytes;
  pool->dry_run_ = config.dry_run != 0;
  const uint64_t soft = config.soft_limit_bytes
                            ? config.soft_limit_bytes
                            : static_cast<uint64_t>(settings->pool_soft_limit_bytes);
  pool->make_memory({.all = limit, .slots = common.value().limit, .soft = soft},
                    settings->prefault);
  pool->shared_ = std::make_unique<CollectiveRegion>(terms.part_bytes, config.record != 0);
  pool->own_ = std::make_unique<CollectiveRegion>(terms.part_bytes, config.record != 0);
  if (common.value().sparse) pool->memory_->set_sparse();
  pool->set_room();
  pool->make_blocks(debug);
  std::vector<int> members = comm.members();
  std::sort(members.begin(), members.end());
  const uint64_t arena_bytes = arena_bytes_of(*pool->arena_, comm);
  FSCCL_TRY(comm.context().arenas().add(pool->arena_id_, pool->arena_->control(), arena_bytes,
                                        std::move(members)));
  // Collectives treat memory that callers see through slots as memory of the arena, too.
  pool->watch_ = std::move(watch);
  if (pool->watch_)
    FSCCL_TRY(
        comm.context().arenas().add_alias(pool->watch_->base(), arena_bytes, {0, pool->arena_id_}));
  pool->metrics_ = std::make_unique<MetricsSource>(
      [made = pool.get()](MetricSamples& samples, std::string_view id) {
        made->tell(samples, id);
      });
  return pool;
}

HostPool::~HostPool() {
  // After a failure a thread may be in the middle of a step that uses the pool's memory.
  comm_.engine().retire_failed();
  if (metrics_) comm_.context().write_metrics();
  metrics_.reset();
  // The service thread may still sleep on a release line of a failed operation.
  Progress::instance().end_old_sleeps();
  if (watch_) comm_.context().arenas().remove_alias(watch_->base());
  comm_.context().arenas().remove(arena_id_);
  comm_.dependents--;
  if (whole_) whole_->dependents--;
}

void HostPool::make_memory(const PoolMemory::Limits& limits, bool prefault) {
  memory_ = std::make_unique<PoolMemory>(*arena_, name_, rank(), part_bytes_, limits);
  memory_->set_source(source_.stack());
  memory_->set_prefault(prefault);
  memory_->set_journal(journal_.get());
  if (dry_run_) memory_->set_dry_run();
  const auto ask = [this](uint64_t bytes) {
    if (ask_) ask_(bytes);
  };
  memory_->set_relief(
      {.trim = [this] { trim(); }, .ask = ask, .holders = [this] { return holders(); }});
}

void HostPool::make_blocks(bool debug) {
  Blocks::Setup place{.pool = name_,
                      .arena = arena_.get(),
                      .arenas = &comm_.context().arenas(),
                      .arena_id = arena_id_};
  place.memory = address(PartKind::local, rank(), 0);
  place.bytes = part_bytes_;
  place.dry_run = dry_run_;
  place.debug = debug;
  place.journal = journal_.get();
  place.left = [this] { return memory_->left(); };
  place.grow = [this](uint64_t extent) { return memory_->grow_blocks(extent); };
  blocks_ = std::make_unique<Blocks>(std::move(place));
}

// Sets the room of both parts of slots: the bytes of one part are not available to the other. In
// sparse parts only live bytes count, and the plan of one part leaves the other plan its bytes.
void HostPool::set_room() {
  const uint64_t most = memory_->most_slots();
  for (const PartKind part : {PartKind::shared, PartKind::own}) {
    const PartKind other = part == PartKind::shared ? PartKind::own : PartKind::shared;
    const uint64_t live = region(other).live();
    if (memory_->sparse())
      set_capacity(part, most - live,
                   most - std::min(std::max(region(other).plan_bytes(), live), most));
    else
      set_capacity(part, memory_->slot_room(claim(other)), 0);
  }
}

// `plan` is the largest plan of a sparse part.
void HostPool::set_capacity(PartKind part, uint64_t bytes, uint64_t plan) {
  memory_->sparse() ? region(part).set_capacity(bytes, plan, part_bytes_)
                    : region(part).set_capacity(bytes);
}

// Returns the holders of memory, the largest first.
std::string HostPool::holders() const {
  std::string text = pool_report::holders(*journal_);
  if (const uint64_t bytes = comm_.engine().transport_bytes())
    text +=
        fmt::format("; beside it the transport of '{}' has up to {} bytes", comm_.name(), bytes);
  return text;
}

Status HostPool::make_private_view(int rank) {
  if (private_views_.count(rank)) return success();
  FSCCL_ASSIGN(const uint64_t offset, arena_->file_offset(address(PartKind::shared, rank, 0)));
  FSCCL_ASSIGN(PrivateView view, PrivateView::create(arena_->fd(), offset, part_bytes_));
  if (watch_) (void)set_access(view.base(), part_bytes_, Access::none);
  private_views_.emplace(rank, std::move(view));
  return success();
}

void HostPool::drop_writes(int rank, uint64_t offset, uint64_t bytes) {
  if (!dry_run_) private_views_.at(rank).drop_writes(offset, bytes);
}

Status HostPool::check_empty() {
  const Blocks::Figures figures = blocks_->figures();
  if (units.empty() && figures.blocks + figures.imports == 0) return blocks_->look();
  std::string list = blocks_->list();
  for (const auto& [key, text] : units) list += (list.empty() ? "" : ", ") + text();
  return fail(FSCCL_ERR_INVALID_STATE,
              "pool '{}' still has {} unit(s), {} block(s){} and {} import(s), the latter two with "
              "{} bytes: destroy and free them first. "
              "They are: {}",
              name_, units.size(), figures.blocks,
              units.empty() || figures.blocks == 0 ? "" : " with the units' shards",
              figures.imports, figures.live_bytes, list);
}

Status HostPool::end_step() {
  return change_history(comm_.engine(), [this] { return end_step_here(); });
}

Status HostPool::end_step_here() {
  set_room();
  shared_->end_step();
  set_room();
  own_->end_step();
  journal_->step();
  if (memory_->sparse()) {
    look_if_torn();
  } else {
    for (const PartKind part : {PartKind::shared, PartKind::own})
      FSCCL_TRY(give_back_surplus(part));
  }
  set_room();
  if (memory_->beyond_soft_limit()) trim();
  update_figures();
  const std::lock_guard lock(mutex_);
  steps_++;
  return success();
}

uint64_t HostPool::history_hash() const { return mix_hash(shared_->hash(), own_->hash()); }

uint64_t HostPool::trim() {
  // Only the local part shrinks. Slots stay until a plan needs less, because peers may still read
  // them. A block that is being made counts in top() before it asks for its memory.
  return blocks_->shrink(
      [this](uint64_t top) { return memory_->shrink(PartKind::local, rank(), top); });
}

}  // namespace fsccl
