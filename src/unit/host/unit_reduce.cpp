// The gradients of a unit in a step: grad() takes the slot that the program writes gradients to;
// reduce_grads reduces the slots of all ranks into this rank's sharded gradients and gives the
// slots back. Peers read a slot until they have reduced, so its bytes may be written again when
// every rank has released the position at which this reduction gave it back.
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "base/user_call.h"
#include "unit/host/host_unit.h"
#include "unit/replica_check.h"

namespace fsccl {

// The data of the hooks, which lies in the operation's context.
struct HostUnit::Finish {
  HostUnit* unit;
  const GradReduction* reduction;
  uint64_t position;  // position at which the gradient slots are given back
  fsccl_reduce_result_t* result;
  void (*shard_ready)(void*, fsccl_unit_t, size_t);
  void* shard_ready_context;
  fsccl_unit_t handle;
};

HostUnit::Finish& HostUnit::finish_of(Operation& op) {
  static_assert(sizeof(Finish) <= sizeof(Operation::context));
  return *reinterpret_cast<Finish*>(op.context.data());
}

namespace {
// The unit and the parameter of the thread that calls shard_ready now. The sharded gradient is
// final, though the operation is not over.
thread_local const HostUnit* told_unit = nullptr;
thread_local size_t told_index = 0;
}  // namespace

bool HostUnit::telling() { return told_unit != nullptr; }

void HostUnit::tell(const Finish& finish, size_t index) {
  // A callback may drive another communicator, which may call shard_ready in this thread.
  const HostUnit* const unit_before = std::exchange(told_unit, finish.unit);
  const size_t index_before = std::exchange(told_index, index);
  call_user("shard_ready",
            [&] { finish.shard_ready(finish.shard_ready_context, finish.handle, index); });
  told_unit = unit_before;
  told_index = index_before;
}

HostUnit& HostUnit::unit_of(Operation& op) { return *finish_of(op).unit; }
const GradReduction& HostUnit::reduction_of(Operation& op) { return *finish_of(op).reduction; }

// Reports a sum over the shard_comm to the caller, unless replicas add to it.
void HostUnit::shard_ready(Operation& op, size_t index) {
  const Finish& finish = finish_of(op);
  if (finish.shard_ready && !finish.unit->spec_.replicate_comm) tell(finish, index);
}

void HostUnit::shard_done(Operation& op, const Step& step) {
  shard_ready(op, reduction_of(op).param_of(step.dst.buffer));
}

Completion HostUnit::shards_summed(Operation& op) {
  const Finish& finish = finish_of(op);
  HostUnit& unit = *finish.unit;
  if (finish.position) unit.pool().done(finish.position);
  if (finish.result) *finish.result = {op.norm.sum, op.norm.finite};
  if (!unit.spec_.replicate_comm) return Completion::over;
  unit.shards_summed_.reach(op.fingerprint.sequence);  // lets the sum over the replicas begin
  return Completion::over;
}

// The norm is that of the sums over all replicas, so it takes a pass of its own.
Completion HostUnit::replicas_summed(Operation& op) {
  const Finish& finish = finish_of(op);
  const HostUnit& unit = *finish.unit;
  Norm norm;
  for (size_t i = 0; i < unit.count(); i++) {
    const uint64_t elements = unit.layout().piece(unit.comm().rank(), i).count;
    if (!unit.has_grad(i) || unit.layout().tied(i) || !elements) continue;
    if (finish.result) {
      const void* source = unit.sharded_grads_.places[i];
      Reduce args{};
      args.sources = &source;
      args.n = 1;
      args.from = args.to = unit.spec_.grad_dtype;
      args.dst = unit.sharded_grads_.places[i];
      args.count = elements;
      args.norm = &norm;
      reduce(args);
    }
    if (finish.shard_ready) tell(finish, i);
  }
  if (finish.result) *finish.result = {norm.sum, norm.finite};
  return Completion::over;
}

Status HostUnit::take_grad_slot(size_t k) {
  if (grads_.held(k)) return success();
  // The last reduction may still read the bindings that will change.
  FSCCL_TRY(finish(summing(), reduced_[k].sequence));
  HostPool::Requester requester{comm(), {}};
  fill_fingerprint(&requester.operation, OpCode::reduce_grads, layout().total(), 0);
  FSCCL_ASSIGN(const uint64_t release_position, grads_.take(k, requester));
  FSCCL_TRY(wait_released(release_position));
  if (pool().watch() && grads_.bytes(k))
    pool().watch()->opened(PartKind::own, grads_.key(k), pool().seen(grads_.base(k)), Access::write,
                           true);
  return success();
}

// Takes the slots of a reduction that the program has not taken by grad(). After an error none of
// the slots that were to take the caller's gradients is held.
Status HostUnit::take_grad_slots(const GradReduction& reduction, bool callers) {
  Status taken = success();
  for (const size_t k : reduction.slots) {
    taken = take_grad_slot(k);
    if (taken.ok()) taken = grads_.intact(k);
    if (!taken.ok()) break;
  }
  if (taken.ok() || !callers) return taken;
  const uint64_t position = pool().open_position();
  for (const size_t k : reduction.slots)
    if (grads_.held(k)) (void)grads_.give_back(k, position).ok();
  pool().done_last();
  return taken;
}

Result<std::byte*> HostUnit::grad_slot(size_t index, void* stream) {
  FSCCL_TRY(begin_call(stream));
  const size_t k = slot_of(index);
  FSCCL_TRY(take_grad_slot(k));
  return pool().seen(grads_.base(k));
}

Status HostUnit::check_reduced(size_t index) {
  const bool told = told_unit == this && told_index == index;
  if (!told && summing().completed() < reduced_[slot_of(index)].sequence) {
    if (engine().failed()) return engine().failure();
    return fail(FSCCL_ERR_INVALID_STATE,
                "the gradients of unit '{}' are still being reduced: wait for the work",
                spec_.name);
  }
  if (told || !replica_sequence_) return success();
  Engine& replicas = spec_.replicate_comm->engine();
  if (replicas.completed() >= replica_sequence_) return success();
  if (replicas.failed()) return replicas.failure();
  return fail(
      FSCCL_ERR_INVALID_STATE,
      "the gradients of unit '{}' are still being summed over the replicas: wait for the work",
      spec_.name);
}

// Copies the caller's gradients to the slots, from which peers reduce them. This rank's own pieces
// are reduced from the caller's memory, or, on several hosts, from the slots as well.
void HostUnit::copy_private_gradients(GradReduction& reduction, const void* const* grads) {
  const uint64_t size = dtype_size(spec_.reduce_dtype);
  const Stores stores = comm().collectives().options().stores_for(reduction.planned.bytes_read);
  for (size_t k = 0; k < reduction.params.size(); k++) {
    const size_t i = reduction.params[k];
    const auto* from = static_cast<const std::byte*>(grads[i]);
    std::byte* to = grads_.base(definition_.grad_map.slot_of(i)) + definition_.grad_map.offset[i];
    const Piece own = span_ ? Piece{} : layout().piece(comm().rank(), i);
    const uint64_t end = own.begin + own.count, rest = layout().numel(i) - end;
    if (own.begin) copy_bytes(to, from, own.begin * size, stores);
    if (rest) copy_bytes(to + end * size, from + end * size, rest * size, stores);
    reduction.own_piece(k) = from + own.begin * size;
  }
}

// Moves the sharded gradients. No reduction may be in flight, because it writes to the old places.
void HostUnit::place_sharded_grads(const GradReduction& reduction, void* const* places) {
  for (const size_t i : reduction.params)
    if (places[i] && layout().piece(comm().rank(), i).count)
      sharded_grads_.places[i] = static_cast<std::byte*>(places[i]);
}

Status HostUnit::check_reduce(const ReduceRequest& request) const {
  if (engine().failed()) return engine().failure();
  if (spec_.replicate_comm && request.sharded_grads)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "unit '{}' has a replicate_comm: sharded_grads cannot move", spec_.name);
  return check_adds_to_replicas(spec_, request.accumulate, reduced_once_, replicas_pending_);
}

Status HostUnit::sum_grads(const ReduceRequest& request, bool wait, fsccl_status_t* state,
                           Submitted* submitted) {
  FSCCL_TRY(check_reduce(request));
  FSCCL_TRY(want(request));
  FSCCL_TRY(check_grads(request));
  GradReduction& reduction = wanted_reduction();
  Communicator* replicas = spec_.replicate_comm;
  const bool final = !replicas || !request.defer_replicas;  // no later call adds to these sums
  FSCCL_TRY(take_grad_slots(reduction, request.grads != nullptr));
  FSCCL_TRY(finish_replicas(replica_sequence_));
  if (request.sharded_grads) place_sharded_grads(reduction, request.sharded_grads);
  if (request.grads && !pool().dry_run()) copy_private_gradients(reduction, request.grads);
  bind_grads(reduction);

  const Scaling scaling =
      scaling_.next(spec_, request.scale, request.accumulate, replicas_pending_);
  Fingerprint fingerprint;
  fill_fingerprint(
      &fingerprint, OpCode::reduce_grads, layout().total(),
      static_cast<uint8_t>((request.accumulate ? 1 : 0) | (request.defer_replicas ? 2 : 0)));
  fingerprint.history = mix_hash(fingerprint.history, std::bit_cast<uint64_t>(request.scale));
  if (spec_.by_parameter) add_range(&fingerprint);
  OperationSettings finishes;
  finishes.scale = scaling.scale;
  finishes.divisor = scaling.divisor;
  finishes.accumulate = request.accumulate;
  const bool sums_replicas = replicas && final;
  // The replicas wait for the second phase, which does not begin if the first one ends early.
  const std::array concerned{&engine(), sums_replicas ? &replicas->engine() : nullptr};
  Chain chain;
  FSCCL_TRY(chain.run(concerned, [&] {
    return submit_reduction({request, reduction, finishes, fingerprint, final}, &chain, wait, state,
                            submitted);
  }));
  return sums_replicas ? reduce_replicas(request, wait, state, submitted) : success();
}

Status HostUnit::submit_reduction(const Reduction& what, Chain* chain, bool wait,
                                  fsccl_status_t* state, Submitted* submitted) {
  const auto& [request, reduction, finishes, fingerprint, final] = what;
  const bool replicas = spec_.replicate_comm != nullptr;
  if (span_) FSCCL_TRY(sum_between_hosts(reduction, finishes, fingerprint, chain));
  Operation* op = nullptr;
  FSCCL_TRY(summing().acquire(&op, finishes, fingerprint));
  Operation* enters = nullptr;
  if (apart_) FSCCL_TRY(engine().acquire(&enters, OperationSettings{}, fingerprint));
  reduce_sequence_ = op->fingerprint.sequence;
  const uint64_t position = reduction.slots.empty() ? 0 : pool().open_position();
  chain->begin();  // other ranks wait until this one is done at that position
  for (const size_t k : reduction.slots) {
    reduced_[k] = {reduce_sequence_, position};
    FSCCL_TRY(grads_.give_back(k, position));
  }
  if (span_)
    end_between_hosts(*op, *chain);
  else
    run_plan(*op, reduction.planned, reduction.bindings.data());
  // With replicas, the second phase writes the result.
  fsccl_reduce_result_t* const result = replicas && final ? nullptr : request.result;
  op->want_norm = result != nullptr;
  op->norm = Norm{};
  op->own_sources = request.grads && !span_ ? reduction.own.data() : nullptr;
  new (op->context.data()) Finish{this,          &reduction,          position,
                                  result,        request.shard_ready, request.shard_ready_context,
                                  request.handle};
  op->complete = span_ ? hosts_summed : shards_summed;
  if (request.shard_ready && !replicas) op->step_done = shard_done;
  if (!spec_.marks_changes) changed_ = true;
  reduced_once_ = true;
  replicas_pending_ = replicas && !final;
  return submit_sums(*op, enters, reduction, wait, state, submitted);
}

// HSDP's second phase: the sharded gradients are summed over the replicas, once the first phase is
// over. Gradients that the unit owns lie in one block and take one operation.
Status HostUnit::reduce_replicas(const ReduceRequest& request, bool wait, fsccl_status_t* state,
                                 Submitted* submitted) {
  Engine& replicas = spec_.replicate_comm->engine();
  Chain chain;
  chain.begin();  // the first phase cannot be taken back
  FSCCL_TRY(
      chain.run(std::array{&replicas}, [&] { return submit_replica_sums(request, wait, state); }));
  replica_sequence_ = replicas.submitted();
  *submitted = {&replicas, replica_sequence_};
  return success();
}

Status HostUnit::submit_replica_sums(const ReduceRequest& request, bool wait,
                                     fsccl_status_t* state) {
  for (size_t k = 0; k < replica_sums_.size(); k++) {
    CollectiveCall call = replica_sums_[k];
    const bool last = k + 1 == replica_sums_.size();
    const auto behind_first_phase = [&](Operation& op) {
      op.gate = &shards_summed_;
      op.gate_position = op.gate_sequence = reduce_sequence_;
      op.gate_engine = &summing();
      op.divisor = scaling_.replicas_divisor();
      op.fingerprint.history = mix_hash(op.fingerprint.history, static_cast<uint64_t>(op.divisor));
      if (!last || (!request.result && !request.shard_ready)) return;
      new (op.context.data()) Finish{this,
                                     nullptr,
                                     0,
                                     request.result,
                                     request.shard_ready,
                                     request.shard_ready_context,
                                     request.handle};
      op.complete = replicas_summed;
    };
    call.prepare = behind_first_phase;
    FSCCL_TRY(spec_.replicate_comm->run(call, wait, state));
  }
  return success();
}

}  // namespace fsccl
