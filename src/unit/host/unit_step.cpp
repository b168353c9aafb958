// The parameters of a unit in a step: unshard takes slots, or finds the kept ones, binds them and
// submits a plan; reshard gives the slots back.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/hash.h"
#include "unit/host/host_unit.h"
#include "unit/replica_check.h"

namespace fsccl {

Status HostUnit::finish(Engine& engine, uint64_t sequence) {
  if (engine.completed() >= sequence) return success();
  fsccl_status_t state;
  return engine.wait(sequence, -1, &state);
}

Status HostUnit::finish_replicas(uint64_t sequence) {
  if (!sequence || spec_.replicate_comm->engine().completed() >= sequence) return success();
  fsccl_status_t state;
  return spec_.replicate_comm->engine().wait(sequence, -1, &state);
}

// Calls visit(engine) for every engine that runs operations of this unit.
template <class Visit>
void HostUnit::each_engine(const Visit& visit) const {
  visit(engine());
  if (apart_) visit(*apart_);
  if (spec_.replicate_comm) visit(spec_.replicate_comm->engine());
  if (!span_) return;
  visit(host_comm().engine());
  for (Communicator* const among : {span_->hosts->lane(), span_->sums_among})
    if (among) visit(among->engine());
}

// Waits until no thread runs an operation of this unit on an engine that has failed. A thread may
// be in the middle of a step, and use the unit and the memory of the caller until the step ends.
void HostUnit::await_failed() const {
  each_engine([](Engine& engine) { engine.retire_failed(); });
}

Status HostUnit::check_idle() {
  bool failed = false;
  each_engine([&](Engine& engine) { failed = failed || engine.failed(); });
  if (failed && telling())  // this thread runs the step for which it would wait
    return fail(FSCCL_ERR_INVALID_STATE,
                "called from shard_ready while a communicator of unit '{}' has failed: return "
                "first",
                spec_.name);
  await_failed();
  auto idle = [](Engine& engine, uint64_t sequence) {
    fsccl_status_t state;
    return engine.completed() >= sequence || engine.failed() ||
           !engine.test(sequence, &state).ok() || state == FSCCL_OK;
  };
  if (idle(engine(), unshard_sequence_) && idle(summing(), reduce_sequence_) &&
      (!spec_.replicate_comm || idle(spec_.replicate_comm->engine(), replica_sequence_)))
    return success();
  return fail(FSCCL_ERR_INVALID_STATE, "an operation of unit '{}' is in flight: wait for it first",
              spec_.name);
}

// Waits until every rank has released the gradient slots that were given back at or before
// `position`.
Status HostUnit::wait_released(uint64_t position) {
  const Deadline deadline = comm().deadline();
  for (int rank = 0; rank < host_comm().size(); rank++) {
    const Milestone& line = *releases_[static_cast<size_t>(rank)];
    if (line.reached() < position) [[unlikely]]
      FSCCL_TRY(wait_for_release(
          engine(), comm().rank_of(host_comm().job_rank(rank)), line, position, deadline,
          fmt::format("grad() of unit '{}', whose slot must be free,", spec_.name)));
  }
  return success();
}

void HostUnit::fill_fingerprint(Fingerprint* fingerprint, OpCode code, uint64_t elements,
                                uint8_t flags) const {
  fingerprint->op = code;
  fingerprint->dtype =
      static_cast<uint8_t>(code == OpCode::unshard ? spec_.wire_dtype : spec_.reduce_dtype);
  fingerprint->count = elements;
  fingerprint->flags = flags;
  fingerprint->history = mix_hash(definition_.hash, pool().history_hash());
}

// Binds the operation to a plan of this unit, and counts the bytes that it moves.
void HostUnit::run_plan(Operation& op, const PlannedUnit& planned, const Binding* bindings) {
  op.plan = &planned.plan;
  op.bindings = bindings;
  op.dry_run = pool().dry_run();
  if (planned.bytes_read + planned.bytes_written >= comm().collectives().options().streaming_bytes)
    op.stores = Stores::streaming;
  engine().tally().moved(planned.bytes_read, planned.bytes_written);
}

// Returns the settings of an operation that writes to slots which were taken. The former contents
// of the slots were given back at `release_position`, which every rank must have released.
OperationSettings HostUnit::unshard_settings(uint64_t release_position) const {
  OperationSettings settings;
  settings.releases = releases_.data();
  settings.released = release_position;
  // Sums that are made apart may free the slots.
  settings.releases_elsewhere = span_ != nullptr || engine().sums_under_way();
  return settings;
}

Status HostUnit::gather(bool writable, bool wait, fsccl_status_t* state, Submitted* submitted) {
  if (engine().failed()) return engine().failure();
  FSCCL_TRY(finish_replicas(broadcast_sequence_));  // it may be writing the shards
  const bool private_copy = writable && shared();   // a writer needs slots that it does not share
  const bool kept = slots_.any_held() && contents_valid_ && !changed_ && !writable;
  SlotSet& slots = private_copy ? writable_slots_ : slots_;
  uint64_t release_position = kept_release_position_;
  if (!private_copy) kept_slot_.idle_since = 0;
  if (!slots.any_held()) {
    HostPool::Requester requester{comm(), {}};
    fill_fingerprint(&requester.operation, OpCode::unshard, layout().total(),
                     static_cast<uint8_t>(writable ? 1 : 0));
    FSCCL_ASSIGN(release_position, slots.take_all(requester));
  }

  for (size_t k = 0; k < slots.size(); k++) bind_slot(slots, k, &unshard_bindings_[k]);
  const Gather gather{writable, kept, release_position};
  Chain chain;
  return chain.run(std::array{&engine()},
                   [&] { return submit_gather(gather, &chain, wait, state, submitted); });
}

Status HostUnit::submit_gather(const Gather& gather, Chain* chain, bool wait, fsccl_status_t* state,
                               Submitted* submitted) {
  const auto [writable, kept, release_position] = gather;
  const PlannedUnit& planned = kept ? barrier_plan_ : writable ? writable_plan_ : unshard_plan_;
  Operation* op = nullptr;
  if (span_) FSCCL_TRY(unshard_between_hosts(planned, !kept, writable, release_position, chain));
  FSCCL_TRY(engine().acquire(&op, unshard_settings(release_position), Fingerprint{}));
  if (span_)
    end_between_hosts(*op, *chain);
  else
    run_plan(*op, planned, unshard_bindings_.data());
  if (pool().watch()) op->owner = this, op->complete = gathered;
  fill_fingerprint(&op->fingerprint, OpCode::unshard, layout().total(),
                   static_cast<uint8_t>((writable ? 1 : 0) | (kept ? 2 : 0)));
  unsharded_ = true;
  writable_ = writable;
  // A caller that may write may change the contents.
  if (!writable || !shared()) contents_valid_ = !writable;
  if (!writable) changed_ = false;
  unshard_sequence_ = op->fingerprint.sequence;
  *submitted = {&engine(), unshard_sequence_};
  return engine().submit(*op, wait, state);
}

Completion HostUnit::gathered(Operation& op) {
  HostUnit& unit = *static_cast<HostUnit*>(op.owner);
  const bool copies = unit.copies_on_write() && !unit.writable_;
  const SlotSet& slots = unit.present_slots();
  for (size_t k = 0; k < slots.size(); k++)
    if (slots.held(k) && slots.bytes(k))
      unit.pool().watch()->opened(slots.part(), slots.key(k), unit.seen_slot(k),
                                  copies || unit.writable_ ? Access::write : Access::read, false);
  return Completion::over;
}

// Returns the address at which the caller sees a slot of the present parameters.
std::byte* HostUnit::seen_slot(size_t k) {
  const SlotSet& slots = present_slots();
  return copies_on_write() && !writable_ ? pool().private_address(shared_owner_, slots.offset(k))
                                         : pool().seen(slots.base(k));
}

Status HostUnit::check_zones() {
  if (!pool().watch()) return success();
  const SlotSet& slots = present_slots();
  for (size_t k = 0; unsharded_ && k < slots.size(); k++) FSCCL_TRY(slots.intact(k));
  for (size_t k = 0; k < grads_.size(); k++) FSCCL_TRY(grads_.intact(k));
  return success();
}

// Drops this rank's writes to slots which it shares with others.
void HostUnit::drop_writes() {
  for (size_t k = 0; copies_on_write() && k < slots_.size(); k++)
    if (slots_.held(k)) pool().drop_writes(shared_owner_, slots_.offset(k), slots_.bytes(k));
}

Status HostUnit::give_back_params() {
  Status finished =
      finish(engine(), unshard_sequence_);  // a failed communicator does not keep the slots
  SlotSet& slots = present_slots();
  for (size_t k = 0; k < slots.size() && finished.ok(); k++) finished = slots.intact(k);
  const bool usual = &slots == &slots_;
  unsharded_ = false;
  if (!writable_) drop_writes();
  const uint64_t position = pool().open_position();
  if (usual && keep_)
    kept_slot_.idle_since = kept_release_position_ = position;
  else
    FSCCL_TRY(slots.give_back_all(position));
  if (usual && !keep_) contents_valid_ = false;
  pool().done_last();
  return finished;
}

Status HostUnit::give_back_param(size_t index) {
  FSCCL_TRY(check_there(index));
  Status finished = finish(engine(), unshard_sequence_);
  SlotSet& slots = present_slots();
  const size_t k = slot_of(index);
  FSCCL_TRY(pool().await_room(engine(), spec_.name));
  if (finished.ok()) finished = slots.intact(k);
  if (copies_on_write() && !writable_)
    pool().drop_writes(shared_owner_, slots.offset(k), slots.bytes(k));
  const uint64_t position = pool().open_position();
  FSCCL_TRY(slots.give_back(k, position));
  pool().done_last();
  return finished;
}

Status HostUnit::check_there(size_t index) {
  if (present_slots().held(slot_of(index))) return success();
  return was_released(index);
}

Result<std::byte*> HostUnit::param_slot(size_t index) {
  FSCCL_TRY(check_there(index));
  if (engine().completed() < unshard_sequence_) {
    if (engine().failed()) return engine().failure();
    return fail(FSCCL_ERR_INVALID_STATE,
                "unit '{}' is still being unsharded: wait for its work before param()", spec_.name);
  }
  return seen_slot(slot_of(index));
}

Status HostUnit::move_shards(void* const* shards) {
  if (spec_.replicate_comm)
    return fail(FSCCL_ERR_INVALID_STATE,
                "unit '{}' has a replicate_comm, whose ranks know each other's shards by address",
                spec_.name);
  FSCCL_TRY(check_idle());
  for (size_t i = 0; i < count(); i++) {
    const size_t owner = layout().owner(i);
    if (shards[owner] && layout().piece(comm().rank(), i).count)
      shards_.places[i] = static_cast<std::byte*>(shards[owner]);
    unshard_bindings_[slots_.size() + i].base = shards_.places[i];
  }
  return success();
}

Result<std::vector<uint64_t>> HostUnit::hash_shards() {
  FSCCL_TRY(check_idle());
  std::vector<uint64_t> hashes(count());
  for (size_t i = 0; i < count(); i++)
    hashes[i] =
        hash_shard(shards_.places[i], layout().piece(comm().rank(), i).count *
                                          dtype_size(spec_.params[layout().owner(i)].dtype));
  return hashes;
}

Status HostUnit::broadcast_shards(int root, bool wait, fsccl_status_t* state,
                                  Submitted* submitted) {
  Communicator& replicas = *spec_.replicate_comm;
  FSCCL_TRY(check_idle());
  if (replicas.engine().mirrored()) return send_state(root, wait, state, submitted);
  Operation* op = nullptr;
  FSCCL_TRY(replicas.engine().acquire(&op, OperationSettings{}, Fingerprint{}));
  const PlannedUnit& planned = broadcast_plans_[static_cast<size_t>(root)];
  op->plan = &planned.plan;
  op->bindings = broadcast_bindings_.data();
  op->fingerprint.op = OpCode::broadcast_state;
  op->fingerprint.count = layout().shard_total(comm().rank());
  op->fingerprint.root = root;
  op->fingerprint.history = definition_.hash;
  changed_ = true;
  replica_sequence_ = broadcast_sequence_ = op->fingerprint.sequence;
  *submitted = {&replicas.engine(), op->fingerprint.sequence};
  return replicas.engine().submit(*op, wait, state);
}

Status HostUnit::send_state(int root, bool wait, fsccl_status_t* state, Submitted* submitted) {
  Communicator& replicas = *spec_.replicate_comm;
  std::vector<fsccl_tensor_t> tensors;
  std::vector<size_t> counts;
  counts.reserve(count());
  for (size_t i = 0; i < count(); i++) {
    const uint64_t elements = layout().piece(comm().rank(), i).count;  // alike on all replicas
    if (layout().tied(i) || !elements) continue;
    counts.push_back(elements);
    fsccl_tensor_t tensor{};
    tensor.recv = shards_.places[i];
    tensor.counts = &counts.back();
    tensor.dtype = spec_.params[i].dtype;
    tensors.push_back(tensor);
  }
  ListCall call{};
  call.kind = ListKind::broadcast;
  call.tensors = tensors.data();
  call.count = tensors.size();
  call.root = root;
  changed_ = true;
  FSCCL_TRY(replicas.run(call, wait, state));
  replica_sequence_ = broadcast_sequence_ = replicas.engine().submitted();
  *submitted = {&replicas.engine(), replica_sequence_};
  return success();
}

}  // namespace fsccl
