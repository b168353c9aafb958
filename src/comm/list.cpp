#include "comm/list.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/count_text.h"
#include "comm/hierarchy.h"

namespace fsccl {

Status check_list(const ListCall& call, const Engine& engine) {
  if (call.count && !call.tensors)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "list is NULL though it has {} tensors", call.count);
  if (call.kind == ListKind::broadcast && (call.root < 0 || call.root >= engine.ranks()))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "root {} is not a rank: they are 0 .. {}", call.root,
                engine.ranks() - 1);
  const int kind = call.reduction.kind;
  const bool reduces = call.kind == ListKind::reduce_scatter;
  if (reduces && (kind < FSCCL_OP_SUM || kind > FSCCL_OP_PREMUL_SUM))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "operator {} is not a fsccl_op_kind_t", kind);
  for (size_t t = 0; t < call.count; t++) {
    const fsccl_tensor_t& tensor = call.tensors[t];
    if (!dtype_valid(tensor.dtype))
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "list[{}]: dtype {} is not a fsccl_dtype_t", t,
                  static_cast<int>(tensor.dtype));
    if (!tensor.counts) return fail(FSCCL_ERR_INVALID_ARGUMENT, "list[{}]: counts is NULL", t);
    if (reduces && (!reduce_supported(tensor.dtype, received_dtype(call, t),
                                      static_cast<fsccl_op_kind_t>(kind)) ||
                    (kind == FSCCL_OP_PREMUL_SUM && !dtype_float(tensor.dtype))))
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "list[{}]: {} cannot be reduced with this operator",
                  t, dtype_name(tensor.dtype));
    uint64_t whole = 0;
    for (int q = 0; q < (call.kind == ListKind::broadcast ? 1 : engine.ranks()); q++) {
      if (tensor.counts[q] >> 40)
        return fail(FSCCL_ERR_INVALID_ARGUMENT,
                    "list[{}]: counts[{}] is {}: beyond the address space", t, q,
                    count_text(tensor.counts[q]));
      whole += tensor.counts[q];
    }
    const uint64_t own = call.kind == ListKind::broadcast ? 0 : tensor.counts[engine.rank()];
    if (((reduces ? whole : own) && !tensor.send) || ((reduces ? own : whole) && !tensor.recv))
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "list[{}]: a buffer is NULL though its count is not 0", t);
  }
  return success();
}

namespace {

// Returns the number of counts of a tensor.
size_t parts_of(const ListCall& call, const Engine& engine) {
  return call.kind == ListKind::broadcast ? 1 : static_cast<size_t>(engine.ranks());
}

ListShape shape_of(const ListCall& call, const Engine& engine) {
  ListShape shape;
  shape.kind = call.kind;
  shape.rank = engine.rank();
  shape.ranks = engine.ranks();
  shape.root = call.root;
  shape.mirrored = engine.mirrored();
  const size_t parts = parts_of(call, engine);
  for (size_t t = 0; t < call.count; t++)
    shape.tensors.push_back({call.tensors[t].dtype,
                             {call.tensors[t].counts, call.tensors[t].counts + parts},
                             received_dtype(call, t)});
  return shape;
}

// Returns a hash of everything but the addresses. It allocates nothing, because every call needs
// it.
uint64_t hash_of(const ListCall& call, size_t parts) {
  uint64_t hash = mix_hash(
      call.count, static_cast<uint64_t>(call.kind) << 32 | static_cast<uint32_t>(call.root));
  for (size_t t = 0; t < call.count; t++) {
    uint64_t tensor = static_cast<uint64_t>(call.tensors[t].dtype) |
                      static_cast<uint64_t>(received_dtype(call, t)) << 8;
    for (size_t q = 0; q < parts; q++) tensor = tensor * 0x100000001b3u + call.tensors[t].counts[q];
    hash = mix_hash(hash, tensor);
  }
  return hash;
}
bool same(const ListShape& shape, const ListCall& call) {
  if (shape.tensors.size() != call.count || shape.kind != call.kind || shape.root != call.root)
    return false;
  for (size_t t = 0; t < call.count; t++) {
    const ListShape::Tensor& tensor = shape.tensors[t];
    if (tensor.dtype != call.tensors[t].dtype || tensor.received != received_dtype(call, t) ||
        !std::equal(tensor.counts.begin(), tensor.counts.end(), call.tensors[t].counts))
      return false;
  }
  return true;
}

// A list in flight.
struct Run {
  Engine& engine;
  std::shared_ptr<const Lists::KeptList> kept;
  std::vector<Binding> bindings;  // by buffer of the plans
  std::vector<Remote> remotes;    // [buffer][rank]
  std::vector<Location> mine, all;
  Plan exchange;
  size_t bucket = 0;
};

// Sets the plan of a bucket, and the bindings of the tensors that it has.
void take_bucket(const Run& run, Operation& op) {
  const ListBucket& bucket = run.kept->buckets()[run.bucket];
  op.plan = &bucket.plan;
  op.bindings = run.bindings.data() + 2 * bucket.first;
}

Completion next_bucket(Operation& op) {
  Run& run = *static_cast<Run*>(op.owner);
  if (++run.bucket == run.kept->buckets().size()) return Completion::over;
  take_bucket(run, op);
  return Completion::again;
}

// Says how this rank reaches a buffer of `rank`. Returns false if it cannot.
bool reach(const Run& run, int rank, const Location& location, uint64_t bytes, Remote* remote) {
  if (location.arena == kNowhere) return true;
  if (rank == run.engine.rank()) return true;
  if (location.arena == kPrivate && !run.engine.one_process()) {
    remote->address = location.address;
    return true;
  }
  if (location.arena == kPrivate) remote->mapped = reinterpret_cast<std::byte*>(location.address);
  if (location.arena >= kFirstArena)
    remote->mapped = run.engine.options().arenas->resolve(location, bytes);
  return remote->mapped != nullptr;
}

Completion located(Operation& op) {
  Run& run = *static_cast<Run*>(op.owner);
  const auto ranks = static_cast<size_t>(run.engine.ranks());
  const bool somewhere_private =
      !run.engine.one_process() &&
      std::any_of(run.all.begin(), run.all.end(),
                  [](const Location& location) { return location.arena == kPrivate; });
  op.bindings = run.bindings.data();
  op.plan = somewhere_private ? &run.kept->read : &run.kept->direct;
  if (op.plan->steps.empty()) {
    take_bucket(run, op);
    op.complete = next_bucket;
    return Completion::again;
  }
  const ListShape& shape = run.kept->shape;
  const size_t tensors = shape.tensors.size();
  run.remotes.resize(2 * tensors * ranks);
  for (size_t t = 0; t < tensors; t++) {
    const size_t buffer = shape.kind == ListKind::broadcast ? 2 * t + 1 : 2 * t;
    for (size_t q = 0; q < ranks; q++) {
      const uint64_t size = dtype_size(shape.tensors[t].dtype);
      const uint64_t bytes =
          (shape.kind == ListKind::all_gather ? shape.part(t, static_cast<int>(q))
                                              : shape.whole(t)) *
          size;
      if (reach(run, static_cast<int>(q), run.all[q * tensors + t], bytes,
                &run.remotes[buffer * ranks + q]))
        continue;
      Error error;
      error.code = FSCCL_ERR_PROTOCOL;
      error.rank = run.engine.known_as(run.engine.rank());
      error.peer = run.engine.known_as(static_cast<int>(q));
      error.text = fmt::format("rank {} named a place for tensor {} that rank {} cannot reach",
                               error.peer, t, error.rank);
      run.engine.fail_all(error);
      return Completion::again;  // drive() sees it
    }
    run.bindings[buffer].table = &run.remotes[buffer * ranks];
  }
  // This comes last: an operation without a `complete` is complete when its steps are done.
  op.complete = nullptr;
  return Completion::again;
}

}  // namespace

OpCode op_code(ListKind kind) {
  return kind == ListKind::all_gather       ? OpCode::all_gather_list
         : kind == ListKind::reduce_scatter ? OpCode::reduce_scatter_list
                                            : OpCode::broadcast_list;
}

Fingerprint described(const ListCall& call) {
  Fingerprint fingerprint;
  fingerprint.op = op_code(call.kind);
  fingerprint.count = call.count;
  fingerprint.root = call.kind == ListKind::broadcast ? call.root : -1;
  return fingerprint;
}

namespace {

// Returns true if reading private memory by the system takes less time than slots do, as two ranks
// predict that stand for all. All ranks come to the same result.
bool reading_pays(const ListShape& shape, uint64_t slot_bytes, const SelectOptions& options) {
  if (!options.costs.can_read || shape.ranks == 1) return false;
  if (options.always_read) return true;
  std::array<ListShape, 2> shapes = {shape, shape};
  shapes[0].rank = shape.root;
  shapes[1].rank = (shape.root + 1) % shape.ranks;
  const bool pushes = options.costs.may_write();
  const double read_ns =
      price({list_read(shapes[0], pushes), list_read(shapes[1], pushes)}, options.costs, true).ns;
  return read_ns < list_slots_ns(shapes, slot_bytes, options.costs);
}

}  // namespace

namespace {

// Also sets what the settings say of a reduction.
Fingerprint fingerprint_of(const ListCall& call, uint64_t hash, int ranks,
                           OperationSettings* settings) {
  Fingerprint fingerprint = described(call);
  fingerprint.history = hash;
  if (call.kind != ListKind::reduce_scatter) return fingerprint;
  fingerprint.kind = static_cast<uint8_t>(call.reduction.kind);
  settings->kind = static_cast<fsccl_op_kind_t>(call.reduction.kind);
  if (settings->kind == FSCCL_OP_AVG) settings->divisor = ranks;
  if (settings->kind == FSCCL_OP_PREMUL_SUM) {
    settings->premul = call.reduction.scale;
    fingerprint.history = mix_hash(hash, std::bit_cast<uint64_t>(settings->premul));
  }
  return fingerprint;
}

}  // namespace

const std::vector<ListBucket>& Lists::KeptList::buckets() const {
  std::call_once(once_, [this] {
    std::vector<ListBucket> made;
    for (size_t k = 0; k < slots->size(); k++) made.push_back(slots->bucket(k));
    buckets_ = std::move(made);
  });
  return buckets_;
}

uint64_t Lists::KeptList::memory() const {
  return sizeof *this + direct.memory() + read.memory() + (slots ? slots->memory() : 0);
}

std::shared_ptr<const Lists::KeptList> Lists::kept_list(const ListCall& call, uint64_t hash,
                                                        Collectives& collectives) {
  for (auto [found, end] = kept_lists_.equal_range(hash); found != end; ++found)
    if (same(found->second->shape, call)) return found->second;
  auto kept = std::make_shared<KeptList>();
  const Engine& engine = collectives.engine();
  kept->shape = shape_of(call, engine);
  kept->direct = list_direct(kept->shape);
  if (engine.ranks() > 1) kept->slots.emplace(kept->shape, engine.slot_bytes());
  kept->one_slot = kept->slots && kept->slots->size() == 1 && kept->slots->ticks(0) == 1;
  if (!kept->one_slot && !engine.only_slots() &&
      reading_pays(kept->shape, engine.slot_bytes(), collectives.options().select))
    kept->read = list_read(kept->shape, collectives.options().select.costs.may_write());
  for (size_t t = 0; t < call.count; t++)
    kept->bytes.push_back({kept->shape.send_bytes(t), kept->shape.recv_bytes(t)});
  count_bytes(kept->direct, &kept->bytes_read, &kept->bytes_written);
  const uint64_t memory = kept->memory();
  if (kept_lists_.size() >= kMostKept || memory_ + memory > kMostMemory) {
    kept_lists_.clear();
    memory_ = 0;
  }
  memory_ += memory;
  return kept_lists_.emplace(hash, std::move(kept))->second;
}

Status Lists::run(Collectives& collectives, const ListCall& call, bool wait,
                  fsccl_status_t* state) {
  Engine& engine = collectives.engine();
  FSCCL_TRY(check_list(call, engine));
  if (Hierarchy* hierarchy = collectives.hierarchy(); hierarchy && hierarchy->takes(call))
    return hierarchy->run(call, wait, state);
  const uint64_t hash = hash_of(call, parts_of(call, engine));
  auto run =
      std::make_shared<Run>(Run{engine, kept_list(call, hash, collectives), {}, {}, {}, {}, {}});
  const Lists::KeptList& kept = *run->kept;
  const bool alone = engine.ranks() == 1, broadcast = call.kind == ListKind::broadcast;
  const bool at_once = alone || kept.one_slot || engine.only_slots();  // buffers are not asked for
  run->bindings.reserve(2 * call.count + 1);
  if (!at_once) run->mine.reserve(call.count);
  for (size_t t = 0; t < call.count; t++) {
    const fsccl_tensor_t& tensor = call.tensors[t];
    const auto [send_bytes, recv_bytes] = kept.bytes[t];
    Binding send, recv;
    send.base = static_cast<std::byte*>(tensor.send);
    recv.base = static_cast<std::byte*>(tensor.recv);
    run->bindings.push_back(send);
    run->bindings.push_back(recv);
    if (!at_once)
      run->mine.push_back(broadcast ? collectives.locate(tensor.recv, recv_bytes)
                                    : collectives.locate(tensor.send, send_bytes));
  }
  run->bindings.emplace_back();           // the slot
  if (at_once && !alone) kept.buckets();  // they are made before anything is submitted

  OperationSettings settings;
  const Fingerprint fingerprint = fingerprint_of(call, hash, engine.ranks(), &settings);
  settings.stores = settings.fallback_stores =
      collectives.options().stores_for(kept.bytes_read + kept.bytes_written);
  Operation* op = nullptr;
  FSCCL_TRY(engine.acquire(&op, settings, fingerprint));
  op->owner = run.get();
  if (alone) {
    op->plan = &kept.direct;
    op->bindings = run->bindings.data();
  } else if (at_once) {
    take_bucket(*run, *op);
    if (kept.buckets().size() > 1) op->complete = next_bucket;
  } else {
    run->all.resize(run->mine.size() * static_cast<size_t>(engine.ranks()));
    Shape exchange;
    exchange.rank = engine.rank();
    exchange.ranks = engine.ranks();
    exchange.count = run->mine.size() * sizeof(Location);
    run->exchange = move_slots(all_gather_movement(exchange), engine.slot_bytes());
    op->plan = &run->exchange;
    op->inline_bindings[0].base = reinterpret_cast<std::byte*>(run->mine.data());
    op->inline_bindings[1].base = reinterpret_cast<std::byte*>(run->all.data());
    op->complete = located;
  }
  engine.tally().moved(kept.bytes_read, kept.bytes_written);
  op->state = std::move(run);
  if (call.prepare) call.prepare(*op);
  return engine.submit(*op, wait, state);
}

}  // namespace fsccl
