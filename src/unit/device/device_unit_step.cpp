// The calls of a training step for a unit on a GPU.
#include <array>
#include <bit>

#include "base/hash.h"
#include "base/user_call.h"
#include "comm/chain.h"
#include "cuda/pointer.h"
#include "unit/device/device_unit.h"
#include "unit/replica_check.h"

namespace fsccl {

// Takes a place for the slot. All ranks take and give back slots of the pool in the same order.
Status DeviceUnit::take(Slot& slot) {
  if (slot.bytes) {
    FSCCL_ASSIGN(slot.offset,
                 pool_.take(slot.key, slot.bytes, slot.kind == Track::Kind::parameters, stream_));
  }
  slot.held = true;
  return success();
}

Status DeviceUnit::give_back(Slot& slot, std::vector<cuda::CUstreamBatchMemOpParams> readers) {
  slot.held = false;
  if (!slot.bytes) return success();
  return change_slots([&] {
    std::vector<cuda::CUstreamBatchMemOpParams> released = mover_->released(slot.kind);
    released.insert(released.end(), readers.begin(), readers.end());
    return pool_.give_back(slot.key, stream_, std::move(released));
  });
}

// Runs the part of a call in which other ranks count on this one. If it ends early, by an error or
// for lack of memory, the communicator fails.
Status DeviceUnit::run_begun(FunctionRef<Status()> rest) const {
  Chain chain;
  chain.begin();
  return chain.run(std::array{&engine()}, rest);
}

// Runs a change of this rank's slots that is not undone if it ends early. All later slots of the
// pool would then have other places than on the other ranks, so the pool's communicator fails too.
Status DeviceUnit::change_slots(FunctionRef<Status()> change) const {
  Chain chain;
  chain.begin();
  return chain.run(std::array{&engine(), &pool_.comm().engine()}, change);
}

// Begins a step of the mover, and takes the slot unless it is held. An error of the mover changes
// nothing. The pool knows the stream (begin_call), so it refuses a slot on all ranks alike, and
// fails its communicator by other errors.
Status DeviceUnit::begin_step(Slot& slot) {
  step_ = Step::none;
  FSCCL_TRY(mover_->begin(slot.kind, stream_));
  Status refused;
  if (!slot.held) {
    Status changed = change_slots([&]() -> Status {
      refused = take(slot);
      return pool_.comm().engine().failed() ? refused.clone() : success();
    });
    FSCCL_TRY(std::move(changed));
  }
  step_ = refused.ok() ? Step::begun : Step::refused;
  return refused;
}

std::byte* DeviceUnit::slot_address(const Slot& slot, uint64_t offset) const {
  return reinterpret_cast<std::byte*>(pool_.slots(rank_in_pool_) + slot.offset + offset);
}

// Returns the hash in which all ranks must agree for this operation. The mover adds the number of
// operations so far.
uint64_t DeviceUnit::agreed(OpCode op, uint8_t flags) const {
  return mix_in_order(mix_in_order(definition_.hash, pool_.history_hash()),
                      static_cast<uint64_t>(op) << 8 | flags);
}

// Returns the failure of the shard_comm, if it has failed.
Status DeviceUnit::look_at_shards() const {
  mover_->look();
  return engine().intact();
}

Status DeviceUnit::prepare_gather() const {
  FSCCL_TRY(look_at_shards());
  return check_named(shards_named_);
}

Status DeviceUnit::gather(bool writable, bool wait, fsccl_status_t* state, Submitted*) {
  if (!wait) return no_work();
  FSCCL_TRY(prepare_gather());
  const bool own = writable || spec_.sharing == FSCCL_SHARING_COPY_ON_WRITE;
  const bool kept = parameters_.held && contents_valid_ && !changed_ && !own,
             again = parameters_.held && !kept;
  FSCCL_TRY(begin_step(parameters_));
  DeviceMover::Gather gather{.stream = stream_,
                             .slot = parameters_.offset,
                             .writable = own,
                             .kept = kept,
                             .again = again,
                             .changed = changed_};
  gather.flags = static_cast<uint8_t>((writable ? 1 : 0) | (kept ? 2 : 0));
  gather.hash = agreed(OpCode::unshard, gather.flags);
  unsharded_ = true;
  contents_valid_ = !own;  // a slot that the caller writes does not hold the shards
  changed_ = changed_ && own;
  *state = FSCCL_OK;
  return run_begun([&]() -> Status {
    if (again) {
      const cuda::Current current(pool_.device());
      FSCCL_TRY(read_->make_wait(stream_));
    }
    return mover_->gather(gather);
  });
}

Status DeviceUnit::give_back_params() {
  unsharded_ = false;
  if (keep_) {
    const cuda::Current current(pool_.device());
    FSCCL_TRY(read_->record(stream_));
  } else {
    contents_valid_ = false;
    FSCCL_TRY(give_back(parameters_));
  }
  mover_->look();
  // A failed communicator does not keep the slot.
  return engine().failed() ? engine().failure() : success();
}

Result<std::byte*> DeviceUnit::param_slot(size_t) {
  mover_->look();
  if (engine().failed()) return engine().failure();
  return slot_address(parameters_, 0);
}

Status DeviceUnit::move_shards(void* const* shards) {
  std::vector<std::byte*> places = shards_.places;
  for (size_t i = 0; i < count(); i++) {
    const size_t owner = layout().owner(i);
    if (!shards[owner] || !layout().piece(comm().rank(), i).count) continue;
    FSCCL_TRY(check_device_memory(shards[owner], "shard", owner));
    places[i] = static_cast<std::byte*>(shards[owner]);
  }
  return name_shards(std::move(places));
}

Result<std::byte*> DeviceUnit::grad_slot(size_t, void* stream) {
  if (!gradients_.held) {
    if (engine().failed()) return engine().failure();
    FSCCL_TRY(begin_call(stream));
    FSCCL_TRY(begin_step(gradients_));
    FSCCL_TRY(run_begun([&] { return mover_->took(Track::Kind::gradients, stream_); }));
  }
  return slot_address(gradients_, 0);
}

Status DeviceUnit::check_reduced(size_t) {
  mover_->look();
  if (engine().failed()) return engine().failure();
  if (replica_sum_ && spec_.replicate_comm->engine().failed())
    return spec_.replicate_comm->engine().failure();
  return success();
}

Status DeviceUnit::check_reduce(const ReduceRequest& request) {
  FSCCL_TRY(want(request));
  FSCCL_TRY(check_grads(request));
  return check_adds_to_replicas(spec_, request.accumulate, reduced_once_, replicas_pending_);
}

Status DeviceUnit::move_sharded_grads(void* const* given) {
  std::vector<std::byte*> places = sharded_grads_.places;
  for (size_t i = 0; i < count(); i++)
    if (has_sharded_grad(i) && given[i]) places[i] = static_cast<std::byte*>(given[i]);
  if (places == sharded_grads_.places && sharded_grads_named_) return success();
  for (size_t i = 0; i < count(); i++)
    if (has_sharded_grad(i)) FSCCL_TRY(check_device_memory(places[i], "sharded gradient", i));
  return name_sharded_grads(std::move(places));
}

// Makes a table of the caller's own gradients, which pack() copies into the slot. A caller that
// passes the same pointers again finds the table made.
Status DeviceUnit::prepare_pack(const void* const* grads) {
  const std::vector<const void*> from(grads, grads + count());
  if (from == packed_from_) return success();
  for (size_t i = 0; i < count(); i++)
    if (is_packed(i)) FSCCL_TRY(check_device_memory(grads[i], "gradient", i));
  mover_->finish(Track::Kind::gradients);  // streams may use the old table
  packed_from_.clear();
  FSCCL_TRY(make_pack(from));
  packed_from_ = from;
  return success();
}

bool DeviceUnit::is_packed(size_t index) const {
  return has_grad(index) && !layout().tied(index) && layout().numel(index);
}

Status DeviceUnit::make_pack(const std::vector<const void*>& from) {
  const cuda::CUdeviceptr slots = pool_.slots(rank_in_pool_);
  std::vector<cuda::CastRange> pieces;
  for (size_t i = 0; i < count(); i++)
    if (is_packed(i))
      pieces.push_back({reinterpret_cast<cuda::CUdeviceptr>(from[i]),
                        slots + definition_.grad_map.offset[i], layout().numel(i),
                        spec_.reduce_dtype, spec_.reduce_dtype});
  pack_.reset();  // the new table takes its memory
  if (pieces.empty()) return success();
  FSCCL_ASSIGN(const cuda::DeviceKernels* kernels, cuda::DeviceKernels::of(pool_.device()));
  FSCCL_ASSIGN(pack_, kernels->make_casts(pieces, cuda::CastBase::destinations));
  return success();
}

// Reserves memory for the table. To make a table between the operations of a step, the driver must
// find memory, and may wait until the device is idle. The device is not idle while a stream of
// another rank on it waits for this rank.
Status DeviceUnit::reserve_pack() { return make_pack(std::vector<const void*>(count())); }

// Copies all of the caller's gradients to the slot in one launch.
Status DeviceUnit::pack() const {
  if (!pack_) return success();
  FSCCL_ASSIGN(const cuda::DeviceKernels* kernels, cuda::DeviceKernels::of(pool_.device()));
  Status packed = kernels->cast(*pack_, 0, gradients_.offset, stream_);
  if (!packed.ok()) engine().fail_all(packed.error());  // the other ranks have begun
  return packed;
}

// Sets the norm if there are no elements, because no launch would write it.
Status DeviceUnit::set_norm_of_nothing(cuda::CUdeviceptr norm) const {
  const cuda::Device& device = pool_.device();
  const cuda::Current current(device);
  FSCCL_TRY(device.check("cuMemsetD8Async", device.driver().cuMemsetD8Async(
                                                norm, 0, sizeof(cuda::DeviceNorm), stream_)));
  return device.check(
      "cuMemsetD8Async",
      // little endian
      device.driver().cuMemsetD8Async(norm + offsetof(cuda::DeviceNorm, finite), 1, 1, stream_));
}

// Gives the result to the caller. It is in host memory when the launch that writes it has ended.
// The host waits for that without the driver: a driver call that waits for peers may block peers
// that are threads of this process (host_memory.h).
Status DeviceUnit::give_result(fsccl_reduce_result_t* result, bool of_replicas) const {
  of_replicas ? replica_sum_->finish() : mover_->finish(Track::Kind::gradients);
  FSCCL_TRY(look_for_failure());
  const cuda::Device& device = pool_.device();
  const cuda::Current current(device);
  const cuda::CUresult code = device.driver().cuStreamQuery(stream_);
  if (code != cuda::CUDA_ERROR_NOT_READY) FSCCL_TRY(device.check("cuStreamQuery", code));
  const cuda::DeviceNorm found =
      reduces_here_ ? *for_host_->as<cuda::DeviceNorm>() : cuda::DeviceNorm{0, 1, 0};
  *result = {found.sum, found.finite};
  return success();
}

// Checks all that can be checked before the first phase. A failure of the replicate_comm does not
// stop it, because the other ranks of the shard_comm may not know of the failure, and wait for this
// rank in the first phase: sum_over_replicas() returns the failure after that. But if the gradients
// do not permit the call, the failure is the more telling error.
Status DeviceUnit::prepare_reduce(const ReduceRequest& request) {
  FSCCL_TRY(look_at_shards());
  if (Status refused = check_reduce(request); !refused.ok()) {
    FSCCL_TRY(look_for_failure());
    return refused;
  }
  int ordinal = -1;
  if (request.result && cuda::on_device(request.result, &ordinal))
    FSCCL_TRY(check_device_memory(request.result,
                                  "the result of the reduction, beside the gradient,", 0));
  if (request.sharded_grads) FSCCL_TRY(move_sharded_grads(request.sharded_grads));
  FSCCL_TRY(check_named(sharded_grads_named_));
  return request.grads ? prepare_pack(request.grads) : success();
}

Status DeviceUnit::sum_grads(const ReduceRequest& request, bool wait, fsccl_status_t* state,
                             Submitted*) {
  static_assert(sizeof(fsccl_reduce_result_t) == sizeof(cuda::DeviceNorm) &&
                offsetof(fsccl_reduce_result_t, finite) == offsetof(cuda::DeviceNorm, finite));
  if (!wait) return no_work();
  FSCCL_TRY(prepare_reduce(request));
  FSCCL_TRY(begin_step(gradients_));

  int ordinal = -1;
  const bool to_device = request.result && cuda::on_device(request.result, &ordinal);
  DeviceMover::Reduce reduce{.stream = stream_, .slot = gradients_.offset};
  const bool final = replica_sum_ && !request.defer_replicas;
  const Scaling scaling =
      scaling_.next(spec_, request.scale, request.accumulate, replicas_pending_);
  reduce.run.epilogue = {scaling.scale, scaling.divisor, request.accumulate};
  const cuda::CUdeviceptr norm = to_device ? reinterpret_cast<cuda::CUdeviceptr>(request.result)
                                 : request.result ? for_host_->device()
                                                  : 0;
  reduce.run.norm = final ? 0 : norm;  // norm of the final result
  reduce.flags = static_cast<uint8_t>((request.accumulate ? 1 : 0) | (final ? 2 : 0));
  reduce.hash = mix_in_order(agreed(OpCode::reduce_grads, reduce.flags),
                             std::bit_cast<uint64_t>(request.scale));
  reduced_once_ = true;
  replicas_pending_ = replica_sum_ && !final;
  Status of_replicas;  // their failure is not one of the shard_comm
  Status reduced = run_begun([&]() -> Status {
    Status done = request.grads ? pack() : success();
    if (done.ok()) done = mover_->reduce(reduce);
    if (done.ok() && final) of_replicas = sum_over_replicas(reduce, norm);
    Status given = give_back(gradients_, final ? replica_sum_->released()
                                               : std::vector<cuda::CUstreamBatchMemOpParams>());
    FSCCL_TRY(std::move(done));
    return given;
  });
  FSCCL_TRY(std::move(reduced));
  FSCCL_TRY(std::move(of_replicas));
  if (!spec_.marks_changes) changed_ = true;
  if (to_device && !reduces_here_) FSCCL_TRY(set_norm_of_nothing(norm));
  for (size_t i = 0; request.shard_ready && !replicas_pending_ && i < count(); i++)
    if (has_sharded_grad(i))
      call_user("shard_ready",
                [&] { request.shard_ready(request.shard_ready_context, request.handle, i); });
  *state = FSCCL_OK;
  return request.result && !to_device ? give_result(request.result, final) : success();
}

}  // namespace fsccl
