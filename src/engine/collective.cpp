#include "engine/collective.h"

#include <cstring>

#include "engine/staged.h"

namespace fsccl {
namespace {

Plan make_plan(OpCode op, const Shape& shape) {
  const uint64_t part = shape.count * dtype_size(shape.dtype);
  const uint64_t whole = part * static_cast<uint64_t>(shape.ranks);
  switch (op) {
    case OpCode::all_gather:
      return part <= kInlineBytes ? all_gather_inline(shape) : all_gather_direct(shape);
    case OpCode::reduce_scatter:
      return whole <= kInlineBytes ? reduce_scatter_inline(shape) : reduce_scatter_direct(shape);
    case OpCode::all_reduce:
      return part <= kInlineBytes ? all_reduce_inline(shape) : all_reduce_direct(shape);
    case OpCode::broadcast:
      return part <= kInlineBytes ? broadcast_inline(shape) : broadcast_direct(shape);
    default:
      return barrier(shape.rank, shape.ranks);
  }
}

// Eager buffers: private memory that peers read goes through this rank's scratch. Slot 0 is the input half, slot 1 the output half.
std::byte* scratch_half(const Engine& engine, size_t slot) {
  size_t half = 0;
  std::byte* scratch = engine.scratch(engine.rank(), &half);
  return scratch + slot * half;
}
// context[0 .. 1]: private input address and bytes; context[2 .. 3]: private output address and bytes
void eager_begin(Operation& op) {
  const auto& engine = *static_cast<const Engine*>(op.owner);
  if (op.context[1]) std::memcpy(scratch_half(engine, 0), reinterpret_cast<const void*>(op.context[0]), op.context[1]);
}
Completion eager_complete(Operation& op) {
  const auto& engine = *static_cast<const Engine*>(op.owner);
  if (op.context[3]) std::memcpy(reinterpret_cast<void*>(op.context[2]), scratch_half(engine, 1), op.context[3]);
  return Completion::over;
}

}  // namespace

void count_bytes(const Plan& plan, uint64_t* read, uint64_t* written) {
  *read = *written = 0;
  for (const Step& step : plan.steps) {
    const bool folds = step.kind == StepKind::reduce || step.kind == StepKind::reduce_local;
    if (!folds && step.kind != StepKind::copy && step.kind != StepKind::cast) continue;
    *read += step.count * dtype_size(step.from) * (folds ? static_cast<uint64_t>(plan.ranks) : 1);
    *written += step.count * dtype_size(step.to);
  }
}

Collectives::Collectives(Engine& engine, const CollectiveOptions& options)
    : engine_(engine),
      options_(options),
      inline_scratch_(std::make_unique<std::byte[]>(static_cast<size_t>(engine.ranks()) * kInlineBytes)) {}

std::unique_ptr<Collectives::Entry> Collectives::make_entry(const CollectiveCall& call) const {
  auto entry = std::make_unique<Entry>();
  Shape shape;
  shape.rank = engine_.rank();
  shape.ranks = engine_.ranks();
  shape.count = call.count;
  shape.dtype = call.dtype;
  shape.root = call.root;
  entry->plan = make_plan(call.op, shape);
  count_bytes(entry->plan, &entry->bytes_read, &entry->bytes_written);

  const uint64_t part = call.count * dtype_size(call.dtype), whole = part * static_cast<uint64_t>(engine_.ranks());
  const auto own = static_cast<int64_t>(part) * engine_.rank();
  switch (call.op) {
    case OpCode::all_gather:
      entry->input_bytes = part, entry->output_bytes = whole, entry->in_place = own;
      break;
    case OpCode::reduce_scatter:
      entry->input_bytes = whole, entry->output_bytes = part, entry->in_place = -own;
      break;
    case OpCode::all_reduce:
      entry->input_bytes = entry->output_bytes = part;
      break;
    case OpCode::broadcast:
      entry->output_bytes = part;
      break;
    default:
      break;
  }
  OperationSettings& settings = entry->settings;
  for (uint32_t i = 0; i < entry->plan.buffers.size(); i++) {
    if (!entry->plan.buffers[i].published) continue;
    settings.published[settings.publishes++] = i;
    entry->private_large |= entry->plan.buffers[i].bytes > options_.eager_bytes;
  }
  if (entry->bytes_read + entry->bytes_written >= options_.streaming_bytes) settings.stores = Stores::streaming;
  entry->fingerprint.op = call.op;
  entry->fingerprint.dtype = static_cast<uint8_t>(call.dtype);
  entry->fingerprint.count = call.count;
  entry->fingerprint.root = call.root;
  if (call.op != OpCode::reduce_scatter && call.op != OpCode::all_reduce) return entry;
  entry->fingerprint.kind = static_cast<uint8_t>(call.reduction.kind);
  settings.kind = static_cast<fsccl_op_kind_t>(call.reduction.kind);
  if (settings.kind == FSCCL_OP_AVG) {
    settings.scale = 1.0 / engine_.ranks();
    settings.divisor = engine_.ranks();
  }
  return entry;
}

Result<const Collectives::Entry*> Collectives::entry_for(const CollectiveCall& call) {
  FSCCL_TRY(check_call(call));
  std::unique_ptr<Entry>& entry = entries_[key_of(call)];
  if (!entry) entry = make_entry(call);
  return static_cast<const Entry*>(entry.get());
}

Status Collectives::check_call(const CollectiveCall& call) const {
  if (call.op == OpCode::barrier) return success();
  const auto ranks = static_cast<uint64_t>(engine_.ranks());
  if (!dtype_valid(call.dtype))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "dtype {} is not a fsccl_dtype_t", static_cast<int>(call.dtype));
  uint64_t bytes = 0;
  if (call.count >> 60 || __builtin_mul_overflow(call.count * dtype_size(call.dtype), ranks, &bytes) || bytes >> 62)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "count {} times {} ranks of {} overflows the address space", call.count, ranks,
                dtype_name(call.dtype));
  if (call.op == OpCode::broadcast && (call.root < 0 || call.root >= engine_.ranks()))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "root {} is not a rank: they are 0 .. {}", call.root, engine_.ranks() - 1);
  if (call.op == OpCode::reduce_scatter || call.op == OpCode::all_reduce) {
    const int kind = call.reduction.kind;
    if (kind < FSCCL_OP_SUM || kind > FSCCL_OP_PREMUL_SUM)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "operator {} is not a fsccl_op_kind_t", kind);
    if (!reduce_supported(call.dtype, call.dtype, static_cast<fsccl_op_kind_t>(kind)) ||
        (kind == FSCCL_OP_PREMUL_SUM && !dtype_float(call.dtype)))
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} cannot be reduced with this operator{}", dtype_name(call.dtype),
                  dtype_bytes_only(call.dtype) ? ": fp8 values are only moved; cast them first" : "");
  }
  return success();
}

Status Collectives::bad_buffers(const CollectiveCall& call, const Entry& entry) const {
  if ((entry.output_bytes && !call.output) || (entry.input_bytes && !call.input))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "a buffer is NULL though count is {}", call.count);
  return fail(FSCCL_ERR_INVALID_ARGUMENT, "send and recv overlap, and not in the in-place form that fsccl.h names for {}",
              op_name(call.op));
}

// Whether every rank of this communicator maps the arena. Arena ids are never reused, so the answer never changes.
bool Collectives::common(uint32_t arena) {
  for (const auto& [id, answer] : common_)
    if (id == arena) return answer;
  const bool answer = engine_.options().arenas->reaches(arena, engine_.options().members);
  common_.emplace_back(arena, answer);
  return answer;
}

// How peers will find a buffer of this rank. False: only through staging in chunks.
bool Collectives::publish(Operation& op, uint32_t buffer, size_t slot) {
  const uint64_t bytes = op.plan->buffers[buffer].bytes;
  Binding& binding = op.inline_bindings[buffer];
  if (op.fingerprint.op == OpCode::broadcast && op.fingerprint.root != engine_.rank()) {
    binding.location = {};  // nobody reads it
    return true;
  }
  if (engine_.options().arenas->locate(binding.base, bytes, &binding.location) && common(binding.location.arena)) return true;
  if (bytes <= options_.eager_bytes) {
    const bool output = op.plan->buffers[buffer].role == Role::output;
    op.context[output ? 2 : 0] = reinterpret_cast<uint64_t>(binding.base);
    op.context[output ? 3 : 1] = bytes;
    op.begin = eager_begin;
    op.complete = eager_complete;
    op.owner = &engine_;
    size_t half = 0;
    engine_.scratch(engine_.rank(), &half);
    binding.location = {slot * half, kScratch};
    if (output) binding.base = scratch_half(engine_, slot);
    return true;
  }
  binding.location = {reinterpret_cast<uint64_t>(binding.base), kPrivate};
  return engine_.single_copy();
}

Status Collectives::run(const CollectiveCall& call, bool wait, fsccl_status_t* state) {
  const Key key = key_of(call);
  Recent& recent = recent_[(key.count ^ key.count >> 12 ^ key.rest << 2 ^ key.rest >> 8) % kRecent];
  if (!(recent.key == key && recent.entry)) [[unlikely]] {
    if (entries_.size() >= kMostEntries && engine_.completed() == engine_.submitted()) {
      entries_.clear();
      recent_.fill({});
    }
    FSCCL_ASSIGN(const Entry* found, entry_for(call));
    recent = {key, found};
  }
  const Entry& entry = *recent.entry;
  const auto in = reinterpret_cast<intptr_t>(call.input), out = reinterpret_cast<intptr_t>(call.output);
  const bool overlap = in < out + static_cast<int64_t>(entry.output_bytes) && out < in + static_cast<int64_t>(entry.input_bytes);
  if ((entry.output_bytes && !out) || (entry.input_bytes && !in) || (overlap && in - out != entry.in_place)) [[unlikely]]
    if (entry.output_bytes) return bad_buffers(call, entry);

  Operation* op = nullptr;
  FSCCL_TRY(engine_.acquire(&op, entry.settings, entry.fingerprint));
  op->plan = &entry.plan;
  if (call.op == OpCode::broadcast) {
    op->inline_bindings[0].base = static_cast<std::byte*>(call.output);
  } else {
    op->inline_bindings[0].base = static_cast<std::byte*>(const_cast<void*>(call.input));
    op->inline_bindings[1].base = static_cast<std::byte*>(call.output);
    op->inline_bindings[2].base = inline_scratch_.get();
  }
  if (entry.settings.kind == FSCCL_OP_PREMUL_SUM) {
    op->premul = call.reduction.scale;
    std::memcpy(&op->fingerprint.history, &op->premul, sizeof op->premul);
  }
  if (entry.settings.publishes) {
    op->context = {};
    bool reachable = true;
    for (uint32_t i = 0; i < entry.settings.publishes; i++) reachable &= publish(*op, entry.settings.published[i], i);
    // Without single copy all ranks first agree whether somebody's buffer has to go through scratch.
    if (entry.private_large && !engine_.single_copy()) FSCCL_TRY(begin_staged(*this, *op, call, reachable));
  }
  engine_.counters().bytes_read += entry.bytes_read;
  engine_.counters().bytes_written += entry.bytes_written;
  return engine_.submit(*op, wait, state);
}

}  // namespace fsccl
