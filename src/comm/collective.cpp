#include "comm/collective.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/clock.h"
#include "base/count_text.h"
#include "bootstrap/job.h"
#include "comm/hierarchy.h"
#include "engine/small_call.h"

namespace fsccl {
namespace {

bool parted(OpCode op) { return op == OpCode::all_gather_v || op == OpCode::reduce_scatter_v; }
bool one_buffer(OpCode op) { return op == OpCode::broadcast || op == OpCode::send; }
// Every rank needs something of every other one.
bool mutual(OpCode op) {
  return op == OpCode::all_gather || op == OpCode::all_gather_v || op == OpCode::reduce_scatter ||
         op == OpCode::reduce_scatter_v || op == OpCode::all_reduce || op == OpCode::all_to_all;
}

// Returns true if the enter signals of a plan have addresses.
bool asks(const Plan& plan) {
  return std::any_of(plan.buffers.begin(), plan.buffers.end(),
                     [](const Buffer& buffer) { return buffer.address_in_signal; });
}

uint64_t hash_of(const std::vector<uint64_t>& values) {
  uint64_t hash = 0;
  for (const uint64_t value : values) hash = mix_hash(hash, value);
  return hash;
}

}  // namespace

void set_plans(OperationSettings* settings, const Plan& plan, const Plan& fallback) {
  settings->publishes = 0;
  for (uint32_t i = 0; i < plan.buffers.size(); i++)
    if (plan.buffers[i].address_in_signal) settings->published[settings->publishes++] = i;
  if (settings->publishes) settings->fallback = &fallback;
}

Collectives::Collectives(Engine& engine, const CollectiveOptions& options)
    : engine_(engine), arenas_(*engine.options().arenas), options_(options) {}

GroupShape Collectives::group_shape() const {
  return {engine_.ranks(), engine_.slot_bytes(), engine_.mirrored(), options_.select};
}

Shape Collectives::shape_of(const CollectiveCall& call) const {
  Shape shape;
  shape.rank = engine_.rank();
  shape.ranks = engine_.ranks();
  shape.count = call.count;
  shape.dtype = call.dtype;
  shape.root = call.root;
  shape.slot_bytes = engine_.slot_bytes();
  shape.mirrored = engine_.mirrored();
  if (!call.counts) return shape;
  shape.counts.assign(call.counts, call.counts + shape.ranks);
  shape.count = std::accumulate(shape.counts.begin(), shape.counts.end(), uint64_t{0});
  if (call.displacements) {
    shape.displacements.assign(call.displacements, call.displacements + shape.ranks);
    return shape;
  }
  shape.displacements.resize(shape.counts.size());
  std::exclusive_scan(shape.counts.begin(), shape.counts.end(), shape.displacements.begin(),
                      uint64_t{0});
  return shape;
}

std::shared_ptr<const KeptCall> Collectives::make_kept_call(const CollectiveCall& call,
                                                            const CallKey& key,
                                                            const Shape& shape) const {
  auto kept = std::make_shared<KeptCall>();
  kept->key = key;
  Selection selection = select(call.op, shape, options_.select);
  kept->plan = std::move(selection.plan);
  kept->fallback = std::move(selection.fallback);
  kept->by_hosts = hierarchy_ && hierarchy_->choose(call, shape).by_hosts;
  announce_flat(call, shape);
  kept->counts = shape.counts;
  kept->displacements = shape.displacements;
  count_bytes(kept->plan, &kept->bytes_read, &kept->bytes_written);

  if (one_buffer(call.op)) {
    kept->output_bytes = shape.count * shape.size();
  } else if (kept->plan.buffers.size() >= 2) {
    kept->input_bytes = kept->plan.buffers[0].bytes;
    kept->output_bytes = kept->plan.buffers[1].bytes;
    // Where one buffer holds a part of each rank and the other this rank's, the latter may be its
    // place in the former.
    const auto own = static_cast<int64_t>(shape.part(shape.rank).begin * shape.size());
    const bool gathers = call.op == OpCode::all_gather || call.op == OpCode::all_gather_v ||
                         call.op == OpCode::gather;
    const bool scatters = call.op == OpCode::reduce_scatter ||
                          call.op == OpCode::reduce_scatter_v || call.op == OpCode::scatter;
    kept->in_place = gathers                         ? own
                     : scatters                      ? -own
                     : call.op == OpCode::all_to_all ? INT64_MAX
                                                     : 0;
  }
  if (kept->plan.buffers.size() > 2 && !kept->plan.buffers[2].slot)
    kept->scratch = std::make_unique_for_overwrite<std::byte[]>(kept->plan.buffers[2].bytes);
  OperationSettings& settings = kept->settings;
  set_plans(&settings, kept->plan, kept->fallback);
  settings.reads = selection.reads;
  settings.foresees = settings.publishes && mutual(call.op);
  // Not to ask saves little where bytes go in many rounds. Where the system reads private memory,
  // or a rule names the plan, buffers that could not be touched in other calls say nothing.
  settings.asks_rarely = settings.publishes && rooted(call.op) && !selection.reads &&
                         kept->fallback.rounds <= kMostRoundsUnasked && !asks(kept->fallback) &&
                         !options_.select.rule(rule_of_plan, call.op, call_bytes(call.op, shape));
  uint64_t read = 0, written = 0;
  count_bytes(kept->fallback, &read, &written);
  const uint64_t in_plan = kept->bytes_read + kept->bytes_written, in_fallback = read + written;
  settings.stores = options_.stores_for(in_plan);
  settings.fallback_stores = options_.stores_for(in_fallback);
  const uint64_t most = std::max(in_plan, in_fallback);
  if (options_.tries_stores(most))
    kept->trial = std::make_shared<StoreTrial>(options_.expected_stores(most));
  // A message's tag and a factor come with the call.
  const bool alike = call.op != OpCode::send && call.reduction.kind != FSCCL_OP_PREMUL_SUM;
  kept->small = alike && small_enough(kept->plan);
  kept->small_fallback =
      alike && (settings.foresees || settings.asks_rarely) && small_enough(kept->fallback);
  settings.in_cache = kept->input_bytes + kept->output_bytes <= options_.cache_bytes;
  kept->fingerprint.op = call.op;
  kept->fingerprint.dtype = static_cast<uint8_t>(call.dtype);
  kept->fingerprint.count = shape.count;
  kept->fingerprint.root = call.root;
  kept->fingerprint.history = hash_of(shape.counts);
  if (!reduces(call.op)) return kept;
  kept->fingerprint.kind = static_cast<uint8_t>(call.reduction.kind);
  settings.kind = static_cast<fsccl_op_kind_t>(call.reduction.kind);
  if (settings.kind == FSCCL_OP_AVG) settings.divisor = engine_.ranks();
  return kept;
}

// Logs a warning if a rule names `by_hosts` (two levels, hierarchy.h) for a call for which this is
// not possible. Two kinds of communicators log none, because the stages of calls in two levels run
// on them: those of the ranks of one host, if the job has ranks on other hosts, and those with one
// rank on each host.
void Collectives::announce_flat(const CollectiveCall& call, const Shape& shape) const {
  const Rule* const rule = options_.select.rule(rule_of_hosts, call.op, call_bytes(call.op, shape));
  const auto [hosts, per_host] = options_.select.host_shape;
  const bool nothing_to_move = shape.count == 0;
  if (!rule || rule->algorithm != Algorithm::by_hosts || nothing_to_move ||
      (hierarchy_ && hierarchy_->takes(call)))
    return;
  const Job* const job = engine_.options().job;
  if (hosts == 1 && engine_.ranks() > 1 && job && job->size() == engine_.ranks())
    announce_ignored(*rule, call.op, "all ranks are on one host");
  else if (hosts > 1 && per_host != 1)
    announce_ignored(
        *rule, call.op,
        "these ranks, the number of elements or the settings do not allow to go by hosts");
}

Result<const KeptCall*> Collectives::kept_call(const CollectiveCall& call, const CallKey& key) {
  FSCCL_TRY(check_call(call));
  const Shape shape = shape_of(call);
  if (const KeptCall* found = kept_calls_.find(key, shape.counts, shape.displacements))
    return found;
  if (parted(call.op)) FSCCL_TRY(check_parts(shape));
  // Calls are dropped when others are kept. A small call that failed does not hold its kept call,
  // and a thread may still be in the middle of it.
  if (engine_.failed()) return engine_.failure();
  return &kept_calls_.keep(make_kept_call(call, key, shape));
}

// Parts must not overlap, nor overflow.
Status Collectives::check_parts(const Shape& shape) const {
  std::vector<Shape::Part> parts;
  for (int q = 0; q < shape.ranks; q++) {
    const Shape::Part part = shape.part(q);
    if (beyond_memory(part.begin, part.count, shape.size()))
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "counts[{}] is {} at displacement {}: beyond the address space", q,
                  count_text(part.count), count_text(part.begin));
    if (part.count) parts.push_back(part);
  }
  std::sort(parts.begin(), parts.end(),
            [](const Shape::Part& a, const Shape::Part& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < parts.size(); i++)
    if (parts[i - 1].begin + parts[i - 1].count > parts[i].begin)
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "the parts at displacements {} ({} elements) and {} overlap", parts[i - 1].begin,
                  parts[i - 1].count, parts[i].begin);
  return success();
}

Status Collectives::check_call(const CollectiveCall& call) const {
  if (call.op == OpCode::barrier) return success();
  const auto ranks = static_cast<uint64_t>(engine_.ranks());
  if (!dtype_valid(call.dtype))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "dtype {} is not a fsccl_dtype_t",
                static_cast<int>(call.dtype));
  uint64_t bytes = 0;
  if (call.count >> 60 ||
      __builtin_mul_overflow(call.count * dtype_size(call.dtype), ranks, &bytes) || bytes >> 47)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "count {} times {} ranks of {} overflows the address space", count_text(call.count),
                ranks, dtype_name(call.dtype));
  if (parted(call.op) && !call.counts)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "counts is NULL: it holds one count per rank");
  if (rooted(call.op) && (call.root < 0 || call.root >= engine_.ranks()))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "root {} is not a rank: they are 0 .. {}", call.root,
                engine_.ranks() - 1);
  if (reduces(call.op)) {
    const int kind = call.reduction.kind;
    if (kind < FSCCL_OP_SUM || kind > FSCCL_OP_PREMUL_SUM)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "operator {} is not a fsccl_op_kind_t", kind);
    if (!reduce_supported(call.dtype, call.dtype, static_cast<fsccl_op_kind_t>(kind)) ||
        (kind == FSCCL_OP_PREMUL_SUM && !dtype_float(call.dtype)))
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} cannot be reduced with this operator{}",
                  dtype_name(call.dtype),
                  dtype_bytes_only(call.dtype)  ? ": fp8 values are only moved; cast them first"
                  : kind == FSCCL_OP_PREMUL_SUM ? ": fsccl_premul_sum() needs a floating-point type"
                                                : "");
  }
  return success();
}

Status Collectives::bad_buffers(const CollectiveCall& call, const KeptCall& kept) const {
  if ((kept.output_bytes && !call.output) || (kept.input_bytes && !call.input))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "a buffer is NULL though count is {}",
                kept.fingerprint.count);
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "send and recv overlap, and not in the in-place form that fsccl.h names for {}",
              op_name(call.op));
}

// Returns true if every rank of this communicator maps the arena. The answer is kept until an arena
// is removed, whose id a later one may get.
bool Collectives::common(uint32_t arena) {
  if (const uint64_t removals = arenas_.removals(); removals != removals_) [[unlikely]] {
    removals_ = removals;
    common_.clear();
  }
  for (const auto& [id, answer] : common_)
    if (id == arena) return answer;
  const bool answer = arenas_.reaches(arena, engine_.options().members);
  common_.emplace_back(arena, answer);
  return answer;
}

Location Collectives::locate(const void* buffer, uint64_t bytes) {
  if (bytes == 0) return {};
  Location location;
  if (arenas_.locate(buffer, bytes, &location) && common(location.arena)) return location;
  return {reinterpret_cast<uint64_t>(buffer), kPrivate};
}

Status Collectives::run(const CollectiveCall& call, bool wait, fsccl_status_t* state) {
  const CallKey key = key_of(call);
  const KeptCall* found = kept_calls_.recent(key);
  if (!found) [[unlikely]] {
    if (call.op == OpCode::all_to_all_v) return all_to_all_v(call, wait, state);
    FSCCL_ASSIGN(found, kept_call(call, key));
  }
  const KeptCall& kept = *found;
  const auto in = reinterpret_cast<intptr_t>(call.input),
             out = reinterpret_cast<intptr_t>(call.output);
  const bool overlap = in < out + static_cast<int64_t>(kept.output_bytes) &&
                       out < in + static_cast<int64_t>(kept.input_bytes);
  if ((kept.output_bytes && !out) || (kept.input_bytes && !in) ||
      (overlap && in - out != kept.in_place)) [[unlikely]]
    return bad_buffers(call, kept);
  if (kept.by_hosts && hierarchy_->takes(call)) [[unlikely]]
    return hierarchy_->run(call, wait, state);

  auto* const input = static_cast<std::byte*>(const_cast<void*>(call.input));
  auto* const output = static_cast<std::byte*>(call.output);
  SmallCall small{&kept.plan,
                  &kept.settings,
                  &kept.fingerprint,
                  {one_buffer(call.op) ? output : input, output, kept.scratch.get()},
                  kept.settings.publishes ? &kept.plan : nullptr};
  for (uint32_t i = 0; i < kept.settings.publishes; i++) {
    const uint32_t buffer = kept.settings.published[i];
    small.published[i] = locate(small.buffers[buffer], kept.plan.buffers[buffer].bytes);
  }
  if ((kept.small || kept.small_fallback) && wait && !call.prepare && engine_.may_run_small()) {
    const bool skips = kept.settings.asks_rarely && engine_.skips_asking(),
               foreseen = skips || (kept.settings.foresees && engine_.foresees_unreachable());
    if (foreseen ? kept.small_fallback : kept.small) {
      if (foreseen) small.plan = &kept.fallback;
      if (skips) small.asks = nullptr;
      Status status = engine_.run_small(small, state);
      engine_.tally().moved(kept.bytes_read, kept.bytes_written);
      return status;
    }
  }
  Operation* op = nullptr;
  FSCCL_TRY(engine_.acquire(&op, kept.settings, kept.fingerprint));
  op->plan = &kept.plan;
  op->state = kept.shared_from_this();
  for (size_t i = 0; i < small.buffers.size(); i++) op->inline_bindings[i].base = small.buffers[i];
  if (call.op == OpCode::send) op->fingerprint.history = static_cast<uint32_t>(call.tag);
  if (kept.settings.kind == FSCCL_OP_PREMUL_SUM) {
    op->premul = call.reduction.scale;
    uint64_t bits;
    std::memcpy(&bits, &op->premul, sizeof bits);
    op->fingerprint.history = mix_hash(op->fingerprint.history, bits);
  }
  for (uint32_t i = 0; i < kept.settings.publishes; i++)
    op->inline_bindings[kept.settings.published[i]].location = small.published[i];
  if (call.prepare) [[unlikely]]
    call.prepare(*op);
  engine_.tally().moved(kept.bytes_read, kept.bytes_written);
  if (!kept.trial) return engine_.submit(*op, wait, state);
  const std::shared_ptr<StoreTrial> trial = kept.trial;
  op->stores = op->fallback_stores = trial->next();
  const int64_t begin = now_ns();
  Status status = engine_.submit(*op, wait, state);
  if (wait && status.ok()) trial->took(now_ns() - begin);
  return status;
}

}  // namespace fsccl
