#include "multi/limited_steps.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "fsccl/insight.h"

namespace fsccl::testing {
namespace {

constexpr uint64_t kPage = 4096, kGrowth = 2 << 20;
constexpr int kActsOfAStep = 24;
enum What {
  kUnshard,
  kUnshardWritable,
  kUnshardLater,
  kReshard,
  kRelease,
  kGrad,
  kReduce,
  kReduceLater,
  kBlock,
  kFree
};

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

std::string text_of_last_error() {
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&error);
  return error.text ? error.text : "";
}

float value_of(size_t unit, size_t param, uint64_t element) {
  return static_cast<float>((unit * 7919 + param * 104729 + element) % 65521);
}

}  // namespace

LimitedSteps::LimitedSteps(fsccl_comm_t comm, uint64_t seed, bool dry,
                           const fsccl_allocator_t* source)
    : comm_(comm),
      seed_(seed),
      dry_(dry),
      sparse_(!source && sysconf(_SC_PAGESIZE) == static_cast<long>(kPage)),
      random_(seed) {
  fsccl_comm_rank(comm, &rank_);
  fsccl_comm_size(comm, &ranks_);
  blocks_.resize(static_cast<size_t>(ranks_));
  draw_setting();
  measure();
  if (!problem_.empty()) return;
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  config.limit_bytes = limits_[static_cast<size_t>(rank_)];
  config.dry_run = dry_;
  config.source = source;
  if (fsccl_pool_create(comm_, &config, &pool_) < 0)
    problem("the pool is not made: " + text_of_last_error());
  else
    make_units(pool_);
}

LimitedSteps::~LimitedSteps() {
  if (!problem_.empty()) fsccl_comm_abort(comm_);
  for (const fsccl_work_t work : works_) fsccl_work_wait(work, -1);
  destroy_units();
  for (void* block : own_blocks_) fsccl_pool_free(pool_, block, nullptr);
  if (pool_) fsccl_pool_destroy(pool_);
}

void LimitedSteps::problem(std::string text) {
  if (problem_.empty())
    problem_ = "rank " + std::to_string(rank_) + " of seed " + std::to_string(seed_) + ": " + text;
}

std::string LimitedSteps::setting() const {
  std::string text = std::to_string(ranks_) + " ranks, limits";
  for (const uint64_t limit : limits_) text += ' ' + std::to_string(limit);
  for (const Unit& unit : units_)
    text += ", unit of " + std::to_string(unit.slot_bytes) +
            (unit.config.by_parameter ? " by parameter" : "") + (unit.config.keep ? " kept" : "") +
            " sharing " + std::to_string(unit.config.sharing);
  return text;
}

void LimitedSteps::draw_setting() {
  units_.resize(2 + below(5));
  for (Unit& unit : units_) {
    unit.config = FSCCL_UNIT_CONFIG_INIT;
    unit.config.shard_comm = comm_;
    unit.config.wire_dtype = unit.config.reduce_dtype = FSCCL_FLOAT32;
    unit.config.layout = below(2) ? FSCCL_LAYOUT_FLAT : FSCCL_LAYOUT_PER_PARAM;
    unit.config.sharing = std::vector{FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE,
                                      FSCCL_SHARING_COPY_ON_WRITE}[below(3)];
    unit.config.by_parameter = below(3) == 0;
    if (!unit.config.by_parameter && below(3) == 0) unit.config.keep = FSCCL_KEEP_ALWAYS;
    unit.params.resize(1 + below(4));
    for (Param& param : unit.params) {
      param.count = 1 + below(below(2) ? 400'000 : 3'000);
      if (dry_) continue;
      param.shard.resize(param.count);
      param.sharded_grad.resize(param.count);
    }
  }
}

void LimitedSteps::make_units(fsccl_pool_t pool) {
  for (size_t u = 0; u < units_.size(); u++) {
    Unit& unit = units_[u];
    unit.config.pool = pool;
    std::vector<fsccl_param_t> params(unit.params.size(), fsccl_param_t FSCCL_PARAM_INIT);
    static float nowhere;  // a rehearsal never touches it
    for (size_t i = 0; i < params.size(); i++) {
      params[i].dims = 1, params[i].shape[0] = static_cast<int64_t>(unit.params[i].count);
      params[i].shard = dry_ ? &nowhere : unit.params[i].shard.data();
      params[i].sharded_grad = dry_ ? &nowhere : unit.params[i].sharded_grad.data();
    }
    if (fsccl_unit_create(&unit.config, params.data(), params.size(), &unit.handle) < 0)
      return problem("a unit is not made: " + text_of_last_error());
    for (size_t i = 0; i < params.size() && !dry_; i++) {
      fsccl_view_t shard;
      fsccl_unit_shard(unit.handle, i, &shard);
      for (uint64_t k = 0; k < shard.count; k++)
        static_cast<float*>(shard.data)[k] = value_of(u, i, shard.offset + k);
    }
  }
}

void LimitedSteps::destroy_units() {
  for (Unit& unit : units_)
    if (unit.handle) fsccl_unit_destroy(std::exchange(unit.handle, nullptr));
}

uint64_t LimitedSteps::live(fsccl_pool_t pool) {
  fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
  fsccl_pool_stats(pool, &stats);
  return stats.collective_live_bytes;
}

// Measures the bytes of each call in a pool without a limit; limits follow from them.
void LimitedSteps::measure() {
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  config.limit_bytes = 1 << 30;
  config.dry_run = 1;
  fsccl_pool_t pool = nullptr;
  if (fsccl_pool_create(comm_, &config, &pool) < 0)
    return problem("no pool to measure in: " + text_of_last_error());
  std::vector<fsccl_keep_t> keeps;
  for (Unit& unit : units_) keeps.push_back(std::exchange(unit.config.keep, FSCCL_KEEP_NONE));
  make_units(pool);
  uint64_t all = 0, largest = 0;
  for (Unit& unit : units_) {
    uint64_t before = live(pool);
    const auto taken = [&] { return live(pool) - std::exchange(before, live(pool)); };
    fsccl_unit_unshard(unit.handle, FSCCL_UNSHARD_WRITABLE, nullptr, nullptr);
    unit.writable_bytes = taken();
    fsccl_unit_reshard(unit.handle, nullptr);
    before = live(pool);
    fsccl_unit_unshard(unit.handle, FSCCL_UNSHARD_READ, nullptr, nullptr);
    unit.slot_bytes = taken();
    for (size_t i = 0; i < unit.params.size() && unit.config.by_parameter; i++) {
      fsccl_unit_release(unit.handle, i, nullptr);
      unit.params[i].slot_bytes = -taken();
    }
    fsccl_unit_reshard(unit.handle, nullptr);
    fsccl_view_t view;
    before = live(pool);
    for (size_t i = 0; i < unit.params.size(); i++) {
      fsccl_unit_grad(unit.handle, i, nullptr, &view);
      unit.params[i].grad_bytes = taken();
      unit.grad_bytes += unit.params[i].grad_bytes;
    }
    fsccl_unit_reduce_grads(unit.handle, nullptr, nullptr, nullptr);
    all += unit.slot_bytes + unit.grad_bytes;
    largest = std::max({largest, unit.slot_bytes, unit.grad_bytes, unit.writable_bytes});
  }
  destroy_units();
  for (size_t u = 0; u < units_.size(); u++) units_[u].config.keep = keeps[u];
  fsccl_pool_destroy(pool);
  const uint64_t least = largest + below(all);
  for (int r = 0; r < ranks_; r++) limits_.push_back(least + (below(2) ? 0 : below(1 << 22)));
}

uint64_t LimitedSteps::in_use() const {
  uint64_t bytes = 0;
  for (const Unit& unit : units_) {
    if (unit.unsharded) bytes += unit.writable ? unit.writable_bytes : unit.slot_bytes;
    for (const Param& param : unit.params) {
      if (unit.unsharded && param.released) bytes -= param.slot_bytes;
      if (param.has_grad) bytes += param.grad_bytes;
    }
    if (!unit.config.by_parameter && unit.has_grad) bytes += unit.grad_bytes;
  }
  return bytes;
}

uint64_t LimitedSteps::top_of_blocks(int rank) const {
  const std::vector<uint64_t>& blocks = blocks_[static_cast<size_t>(rank)];
  return std::accumulate(blocks.begin(), blocks.end(), uint64_t{0});
}

bool LimitedSteps::answered(const char* what, fsccl_status_t status, uint64_t bytes) {
  const std::string text = status < 0 ? text_of_last_error() : "";
  calls_++;
  fsccl_status_t state = FSCCL_OK;
  if (fsccl_comm_async_error(comm_, &state) < 0 || state < 0) {
    problem(std::string(what) + " has ended the communicator: " + text_of_last_error());
    return false;
  }
  std::vector<int32_t> all(static_cast<size_t>(ranks_));
  const int32_t mine = status > 0 ? 0 : status;
  if (fsccl_all_gather(&mine, all.data(), sizeof mine, FSCCL_UINT8, comm_, nullptr, nullptr) < 0) {
    problem(std::string("after ") + what + ": " + text_of_last_error());
    return false;
  }
  for (const int32_t other : all)
    if (other != mine)
      problem(std::string(what) + ": " + std::to_string(mine) + " here and elsewhere " +
              std::to_string(other) + ' ' + text);
  if (mine == 0 || !problem_.empty()) return problem_.empty();
  refused_++;
  if (mine != FSCCL_ERR_OUT_OF_MEMORY) problem(std::string(what) + ": " + text);
  const uint64_t wanted = in_use() + bytes;
  bool room = wanted <= *std::min_element(limits_.begin(), limits_.end()) / kPage * kPage;
  for (int r = 0; r < ranks_; r++)
    room = room && wanted + round_up(top_of_blocks(r), kGrowth) <=
                       limits_[static_cast<size_t>(r)] / kPage * kPage;
  if (room && sparse_)
    problem(std::string(what) + " is refused, though " + std::to_string(in_use()) +
            " bytes are in use and " + std::to_string(bytes) + " are asked for: " + text);
  return false;
}

void LimitedSteps::unshard(Unit& unit, bool writable, bool later) {
  if (unit.unsharded) return;
  fsccl_work_t work = nullptr;
  const fsccl_status_t status =
      fsccl_unit_unshard(unit.handle, writable ? FSCCL_UNSHARD_WRITABLE : FSCCL_UNSHARD_READ,
                         nullptr, later ? &work : nullptr);
  if (!answered("unshard", status, writable ? unit.writable_bytes : unit.slot_bytes)) return;
  unit.unsharded = true;
  unit.writable = writable;
  unit.gathered = work;
  for (Param& param : unit.params) param.released = false;
  if (!later) look_at(unit);
}

void LimitedSteps::look_at(Unit& unit) {
  if (unit.gathered && fsccl_work_wait(std::exchange(unit.gathered, nullptr), -1) < 0)
    return problem("a gather failed: " + text_of_last_error());
  const size_t u = static_cast<size_t>(&unit - units_.data());
  for (size_t i = 0; i < unit.params.size() && !dry_; i++) {
    if (unit.params[i].released) continue;
    fsccl_view_t whole;
    if (fsccl_unit_param(unit.handle, i, &whole) < 0)
      return problem("param(): " + text_of_last_error());
    for (uint64_t k = 0; k < whole.count; k++)
      if (static_cast<float*>(whole.data)[k] != value_of(u, i, k))
        return problem("a parameter has a wrong value");
  }
}

void LimitedSteps::take_gradient(Unit& unit, size_t param) {
  if (unit.config.by_parameter ? unit.params[param].has_grad : unit.has_grad) return;
  fsccl_view_t view{};
  const fsccl_status_t status = fsccl_unit_grad(unit.handle, param, nullptr, &view);
  if (!answered("grad", status,
                unit.config.by_parameter ? unit.params[param].grad_bytes : unit.grad_bytes))
    return;
  (unit.config.by_parameter ? unit.params[param].has_grad : unit.has_grad) = true;
}

void LimitedSteps::reduce(Unit& unit, bool later) {
  fsccl_view_t view{};
  const float value = static_cast<float>(1 + &unit - units_.data());
  bool any = unit.has_grad;
  for (const Param& param : unit.params) any |= param.has_grad;
  if (!any) return;
  for (size_t i = 0; i < unit.params.size(); i++) {
    if (unit.config.by_parameter && !unit.params[i].has_grad) continue;
    if (fsccl_unit_grad(unit.handle, i, nullptr, &view) < 0)
      return problem("grad() of a held slot: " + text_of_last_error());
    for (uint64_t k = 0; k < view.count && !dry_; k++) static_cast<float*>(view.data)[k] = value;
  }
  fsccl_work_t work = nullptr;
  const fsccl_status_t status =
      fsccl_unit_reduce_grads(unit.handle, nullptr, nullptr, later ? &work : nullptr);
  if (status < 0) return problem("reduce_grads: " + text_of_last_error());
  if (later) works_.push_back(work);
  unit.has_grad = false;
  for (size_t i = 0; i < unit.params.size(); i++) {
    const bool reduced = !unit.config.by_parameter || std::exchange(unit.params[i].has_grad, false);
    if (later || dry_ || !reduced) continue;
    if (fsccl_unit_sharded_grad(unit.handle, i, &view) < 0)
      return problem("sharded_grad(): " + text_of_last_error());
    for (uint64_t k = 0; k < view.count; k++)
      if (static_cast<float*>(view.data)[k] != value)
        return problem("a gradient has a wrong value");
  }
}

// Takes a block on one rank, or frees that rank's last one. All ranks keep account of it.
void LimitedSteps::block(uint64_t bytes, int rank) {
  std::vector<uint64_t>& blocks = blocks_[static_cast<size_t>(rank)];
  if (!bytes) {
    if (blocks.empty()) return;
    blocks.pop_back();
    if (rank != rank_) return;
    if (fsccl_pool_free(pool_, own_blocks_.back(), nullptr) < 0)
      problem("free: " + text_of_last_error());
    own_blocks_.pop_back();
    return;
  }
  int32_t taken = 0;
  void* made = nullptr;
  if (rank == rank_) taken = fsccl_pool_alloc(pool_, bytes, nullptr, &made) == FSCCL_OK;
  if (fsccl_broadcast(&taken, sizeof taken, FSCCL_UINT8, rank, comm_, nullptr, nullptr) < 0)
    return problem("after alloc: " + text_of_last_error());
  if (!taken) return;
  blocks.push_back(round_up(bytes, kPage));
  if (rank == rank_) own_blocks_.push_back(made);
}

std::vector<LimitedSteps::Act> LimitedSteps::random_step() {
  std::vector<Act> acts;
  for (int i = 0; i < kActsOfAStep; i++) {
    Act act;
    act.what = static_cast<int>(below(10));
    act.unit = below(units_.size());
    act.param = below(units_[act.unit].params.size());
    act.bytes = 1 + below(1 << 21);
    if (act.what == kBlock || act.what == kFree) act.unit = below(static_cast<uint64_t>(ranks_));
    if (act.what == kBlock && below(3)) act.what = kFree;
    acts.push_back(act);
  }
  return acts;
}

void LimitedSteps::act(const Act& act) {
  if (act.what == kBlock || act.what == kFree)
    return block(act.what == kBlock ? act.bytes : 0, static_cast<int>(act.unit));
  Unit& unit = units_[act.unit];
  switch (act.what) {
    case kUnshard:
    case kUnshardWritable:
    case kUnshardLater:
      return unshard(unit, act.what == kUnshardWritable, act.what == kUnshardLater);
    case kReshard:
      if (!unit.unsharded) return;
      look_at(unit);
      if (fsccl_unit_reshard(unit.handle, nullptr) < 0) problem("reshard: " + text_of_last_error());
      unit.unsharded = false;
      return;
    case kRelease:
      if (!unit.unsharded || !unit.config.by_parameter || unit.params[act.param].released) return;
      if (fsccl_unit_release(unit.handle, act.param, nullptr) < 0)
        problem("release: " + text_of_last_error());
      unit.params[act.param].released = true;
      return;
    case kGrad:
      return take_gradient(unit, act.param);
    default:
      return reduce(unit, act.what == kReduceLater);
  }
}

// Declares a schedule that unshards some neighbouring units, all at once, and then reshards them.
// The caller calls it when nothing is in use.
void LimitedSteps::declare() {
  std::vector<fsccl_event_t> events;
  const size_t first = below(units_.size()), count = 1 + below(units_.size());
  for (const fsccl_event_kind_t kind : {FSCCL_EVENT_UNSHARD, FSCCL_EVENT_RESHARD})
    for (size_t u = 0; u < count; u++)
      events.push_back({kind, units_[(first + u) % units_.size()].handle, 0, 0});
  const fsccl_status_t status = fsccl_pool_schedule(pool_, events.data(), events.size());
  (void)answered("schedule", status, uint64_t{1} << 40);
}

// Ends a step. Seven times in eight it gives everything back first.
void LimitedSteps::end_step() {
  const bool all = below(8) != 0;
  for (size_t u = 0; u < units_.size() && problem_.empty(); u++) {
    if (!all && below(2)) continue;
    act({kReshard, u, 0, 0});
    act({kReduce, u, 0, 0});
  }
  for (const fsccl_work_t work : works_)
    if (fsccl_work_wait(work, -1) < 0) problem("a reduction failed: " + text_of_last_error());
  works_.clear();
  if (fsccl_pool_step(pool_) < 0) problem("pool_step: " + text_of_last_error());
  if (in_use() == 0 && below(20) == 0) declare();
}

void LimitedSteps::run(int steps) {
  for (int step = 0; step < steps && problem_.empty(); step++) {
    if (known_.empty() || below(2)) known_.push_back(random_step());
    if (known_.size() > 6) known_.erase(known_.begin());
    const std::vector<Act> acts = known_[below(known_.size())];
    for (size_t i = 0; i < acts.size() && problem_.empty(); i++) act(acts[i]);
    if (problem_.empty()) end_step();
  }
}

}  // namespace fsccl::testing
