#include "engine/collective.h"

#include <cstring>

#include "engine/staged.h"

namespace fsccl {
namespace {

bool overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

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

size_t Collectives::KeyHash::operator()(const Key& key) const {
  return mix_hash(key.count,
                  (uint64_t{static_cast<uint8_t>(key.op)} << 40) ^ (uint64_t{key.dtype} << 32) ^ static_cast<uint32_t>(key.root));
}

const Collectives::Entry& Collectives::plan_for(OpCode op, uint64_t count, fsccl_dtype_t dtype, int root) {
  const Key key{count, op, static_cast<uint8_t>(dtype), root};
  Recent& recent =
      recent_[(count ^ (count >> 12) ^ (uint64_t{static_cast<uint8_t>(op)} << 2) ^ static_cast<uint64_t>(dtype)) % kRecent];
  if (recent.entry && recent.key == key) return *recent.entry;
  if (plans_.size() >= kMostPlans && engine_.completed() == engine_.submitted()) {
    plans_.clear();
    recent_.fill({});
  }
  std::unique_ptr<Entry>& entry = plans_[key];
  if (!entry) {
    entry = std::make_unique<Entry>();
    Shape shape;
    shape.rank = engine_.rank();
    shape.ranks = engine_.ranks();
    shape.count = count;
    shape.dtype = dtype;
    shape.root = root;
    entry->plan = make_plan(op, shape);
    count_bytes(entry->plan, &entry->bytes_read, &entry->bytes_written);
    for (uint32_t i = 0; i < entry->plan.buffers.size(); i++)
      if (entry->plan.buffers[i].published) entry->published[entry->publishes++] = i;
  }
  recent = {key, entry.get()};
  return *entry;
}

Status Collectives::check(const CollectiveCall& call) const {
  if (call.op == OpCode::barrier) return success();
  const auto ranks = static_cast<uint64_t>(engine_.ranks());
  if (!dtype_valid(call.dtype))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "dtype {} is not a fsccl_dtype_t", static_cast<int>(call.dtype));
  const uint64_t size = dtype_size(call.dtype);
  uint64_t bytes = 0;
  if (call.count >> 60 || __builtin_mul_overflow(call.count * size, ranks, &bytes) || bytes >> 62) [[unlikely]]
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
  if (call.count == 0) return success();
  const bool both = call.op != OpCode::broadcast;
  if (!call.output || (both && !call.input))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "a buffer is NULL though count is {}", call.count);
  const uint64_t part = call.count * size;
  const auto own = part * static_cast<uint64_t>(engine_.rank());
  const auto* in = static_cast<const std::byte*>(call.input);
  const auto* out = static_cast<const std::byte*>(call.output);
  bool wrong = false;
  if (call.op == OpCode::all_gather) wrong = in != out + own && overlap(in, part, out, part * ranks);
  if (call.op == OpCode::reduce_scatter) wrong = out != in + own && overlap(in, part * ranks, out, part);
  if (call.op == OpCode::all_reduce) wrong = in != out && overlap(in, part, out, part);
  if (wrong)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "send and recv overlap, and not in the in-place form that fsccl.h names for {}",
                op_name(call.op));
  return success();
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

void Collectives::bind(Operation& op, const CollectiveCall& call, const Entry& entry) {
  op.plan = &entry.plan;
  op.publishes = entry.publishes;
  op.published = entry.published;
  if (call.op == OpCode::broadcast) {
    op.inline_bindings[0].base = static_cast<std::byte*>(call.output);
  } else {
    op.inline_bindings[0].base = static_cast<std::byte*>(const_cast<void*>(call.input));
    op.inline_bindings[1].base = static_cast<std::byte*>(call.output);
    op.inline_bindings[2].base = inline_scratch_.get();
  }
  op.inline_bindings[0].table = op.inline_bindings[1].table = op.inline_bindings[2].table = nullptr;
  op.fingerprint.op = call.op;
  op.fingerprint.dtype = static_cast<uint8_t>(call.dtype);
  op.fingerprint.count = call.count;
  op.fingerprint.root = call.root;
  if (call.op != OpCode::reduce_scatter && call.op != OpCode::all_reduce) return;
  op.fingerprint.kind = static_cast<uint8_t>(call.reduction.kind);
  op.kind = static_cast<fsccl_op_kind_t>(call.reduction.kind);
  if (op.kind == FSCCL_OP_PREMUL_SUM) {
    op.premul = call.reduction.scale;
    std::memcpy(&op.fingerprint.history, &op.premul, sizeof op.premul);
  }
  if (op.kind == FSCCL_OP_AVG) {
    op.scale = 1.0 / engine_.ranks();
    op.divisor = engine_.ranks();
  }
}

Status Collectives::run(const CollectiveCall& call, bool wait, fsccl_status_t* state) {
  FSCCL_TRY(check(call));
  const Entry& entry = plan_for(call.op, call.count, call.dtype, call.root);
  Operation* op = nullptr;
  FSCCL_TRY(engine_.acquire(&op));
  bind(*op, call, entry);
  bool reachable = true;
  bool private_large = false;
  if (entry.publishes) op->context = {};
  for (uint32_t i = 0; i < entry.publishes; i++) {
    private_large |= entry.plan.buffers[entry.published[i]].bytes > options_.eager_bytes;
    reachable &= publish(*op, entry.published[i], i);
  }
  if (entry.bytes_read + entry.bytes_written >= options_.streaming_bytes) op->stores = Stores::streaming;
  // Without single copy all ranks first agree whether somebody's buffer has to go through scratch.
  if (private_large && !engine_.single_copy()) begin_staged(*this, *op, call, reachable);
  engine_.counters().bytes_read += entry.bytes_read;
  engine_.counters().bytes_written += entry.bytes_written;
  return engine_.submit(*op, wait, state);
}

}  // namespace fsccl
