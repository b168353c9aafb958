#include "unit/device/collective_unit_mover.h"

#include <array>

#include "base/undo.h"
#include "comm/chain.h"
#include "pool/device/device_pool.h"
#include "pool/device/reach.h"

namespace fsccl {

Result<std::unique_ptr<CollectiveUnitMover>> CollectiveUnitMover::make(const Request& request) {
  std::unique_ptr<CollectiveUnitMover> mover(new CollectiveUnitMover(request));
  const cuda::Device& device = request.pool.device();
  CollectiveMover::Request by;
  by.comm = request.spec.shard_comm;
  by.ordinal = device.ordinal();
  by.slots = request.pool.slots(request.pool.comm().rank());
  const bool gathers_coded = request.spec.gathers_coded(),
             reduces_coded = request.spec.reduces_coded();
  if (!gathers_coded) by.parameters = mover->parameter_pieces();
  if (!reduces_coded) by.gradients = mover->gradient_pieces();
  request.pool.keep_first_slots();
  FSCCL_ASSIGN(mover->by_, CollectiveMover::create(std::move(by)));
  FSCCL_ASSIGN(mover->kernels_, cuda::DeviceKernels::of(device));
  if (gathers_coded) {
    FSCCL_ASSIGN(mover->coded_gather_,
                 CodedDeviceGather::create(request.spec, request.pool, mover->parameter_pieces()));
  }
  if (reduces_coded) {
    FSCCL_ASSIGN(mover->coded_sum_,
                 CodedDeviceSum::create(request.spec, request.pool, mover->gradient_pieces()));
  }
  FSCCL_ASSIGN(mover->gathered_, cuda::OwnedEvent::create(device));
  FSCCL_ASSIGN(mover->reduced_, cuda::OwnedEvent::create(device));
  return mover;
}

// All ranks take the same path up to the agreement in CollectiveMover. Steps that may fail on one
// rank alone come after it, and all_ok() then makes all ranks return an error.
Result<std::unique_ptr<DeviceMover>> CollectiveUnitMover::create(const Request& request) {
  Communicator& comm = *request.spec.shard_comm;
  Result<std::unique_ptr<CollectiveUnitMover>> made = make(request);
  if (!made.ok() && (made.status().code() == FSCCL_ERR_NOT_AVAILABLE || comm.engine().failed()))
    return made.take_status();
  FSCCL_TRY(all_ok(comm, made.status().clone(), fmt::format("make unit '{}'", request.spec.name)));
  return std::unique_ptr<DeviceMover>(made.take());
}

CollectiveUnitMover::~CollectiveUnitMover() {
  if (!gathered_ || !reduced_) return;
  for (const auto kind : {Track::Kind::parameters, Track::Kind::gradients}) finish(kind);
  if (gathered_->complete() && reduced_->complete()) return;
  (void)by_.release();  // streams still use their memory, and freeing it would wait for them
  if (coded_gather_) coded_gather_.release()->abandon_room();
  if (coded_sum_) coded_sum_.release()->abandon_room();
  (void)new auto(std::move(casts_));
}

// Returns the pieces of parameters, rank by rank. Pieces that lie end to end are joined.
std::vector<CollectiveMover::Piece> CollectiveUnitMover::parameter_pieces() const {
  std::vector<CollectiveMover::Piece> pieces;
  for (int rank = 0; rank < spec_.shard_comm->size(); rank++) {
    for (size_t i = 0; i < spec_.params.size(); i++) {
      const Piece part = definition_.layout->piece(rank, i);
      if (definition_.layout->tied(i) || !part.count) continue;
      const fsccl_dtype_t dtype = definition_.wire_dtypes[i];
      const uint64_t offset = definition_.wire_map.offset[i] + part.begin * dtype_size(dtype);
      if (!pieces.empty() && pieces.back().rank == rank && pieces.back().dtype == dtype &&
          pieces.back().offset + pieces.back().bytes() == offset)
        pieces.back().count += part.count;
      else
        pieces.push_back({rank, offset, part.count, dtype});
    }
  }
  return pieces;
}

// Returns the pieces of gradients. None are joined, because the sum of each has a place of its own.
std::vector<CollectiveMover::Piece> CollectiveUnitMover::gradient_pieces() const {
  std::vector<CollectiveMover::Piece> pieces;
  for (int rank = 0; rank < spec_.shard_comm->size(); rank++)
    for (size_t i = 0; i < spec_.params.size(); i++)
      if (const Piece part = definition_.layout->piece(rank, i); reduced(i) && part.count)
        pieces.push_back(
            {rank, definition_.grad_map.offset[i] + part.begin * dtype_size(spec_.reduce_dtype),
             part.count, spec_.reduce_dtype});
  return pieces;
}

Status CollectiveUnitMover::place_shards(const std::vector<std::byte*>& shards) {
  std::vector<cuda::CastRange> pieces;
  for (size_t i = 0; i < spec_.params.size(); i++) {
    const Piece part = definition_.layout->piece(spec_.shard_comm->rank(), i);
    if (definition_.layout->tied(i) || !part.count) continue;
    const fsccl_dtype_t wire = definition_.wire_dtypes[i];
    pieces.push_back({reinterpret_cast<cuda::CUdeviceptr>(shards[i]),
                      definition_.wire_map.offset[i] + part.begin * dtype_size(wire), part.count,
                      spec_.params[i].dtype, wire});
  }
  FSCCL_TRY(finished(Track::Kind::parameters));  // streams may use the old ones
  casts_.reset();
  if (pieces.empty()) return success();
  FSCCL_ASSIGN(casts_, kernels_->make_casts(pieces, cuda::CastBase::destinations));
  return success();
}

Status CollectiveUnitMover::place_sharded_grads(const std::vector<std::byte*>& grads) {
  std::vector<CollectiveMover::Sum> sums;
  for (size_t i = 0; i < spec_.params.size(); i++)
    if (reduced(i) && definition_.layout->piece(spec_.shard_comm->rank(), i).count)
      sums.push_back({reinterpret_cast<cuda::CUdeviceptr>(grads[i]), spec_.grad_dtype});
  FSCCL_TRY(finished(Track::Kind::gradients));
  return coded_sum_ ? coded_sum_->place_sums(sums) : by_->place_sums(sums);
}

Status CollectiveUnitMover::begin(Track::Kind kind, cuda::CUstream stream) {
  const cuda::Current current(pool_.device());
  return last(kind).make_wait(stream);
}

Status CollectiveUnitMover::took(Track::Kind kind, cuda::CUstream stream, OpCode) {
  return run(kind, stream, [] { return success(); });
}

// Runs operation(), which puts an operation of the kind on the stream, and notes where it ends. The
// other ranks have begun it, so an error of this rank, or no memory for it, fails the communicator.
// The end is noted even then, because what is on the stream already uses the unit's tables.
Status CollectiveUnitMover::run(Track::Kind kind, cuda::CUstream stream,
                                FunctionRef<Status()> operation) const {
  Chain chain;
  chain.begin();
  return chain.run(std::array{&spec_.shard_comm->engine()}, [&]() -> Status {
    Undo note([&] {
      const cuda::Current current(pool_.device());
      (void)last(kind).record(stream).ok();
    });
    FSCCL_TRY(operation());
    note.keep();
    const cuda::Current current(pool_.device());
    return last(kind).record(stream);
  });
}

Status CollectiveUnitMover::gather(const Gather& gather) {
  if (gather.kept) return success();
  const cuda::CUdeviceptr slot = pool_.slots(pool_.comm().rank()) + gather.slot;
  return run(Track::Kind::parameters, gather.stream, [&]() -> Status {
    if (!coded_gather_) FSCCL_TRY(by_->use_window(pool_.first_slot_bytes()));
    if (casts_ && (gather.changed || !coded_gather_))
      FSCCL_TRY(kernels_->cast(*casts_, 0, slot, gather.stream));
    return coded_gather_ ? coded_gather_->gather(slot, gather.changed, gather.stream)
                         : by_->gather(gather.slot, gather.stream);
  });
}

Status CollectiveUnitMover::reduce(const Reduce& reduce) {
  const cuda::CUdeviceptr slot = pool_.slots(pool_.comm().rank()) + reduce.slot;
  const auto& [epilogue, norm] = reduce.run;
  return run(Track::Kind::gradients, reduce.stream, [&] {
    return coded_sum_ ? coded_sum_->reduce(slot, epilogue, norm, reduce.stream)
                      : by_->reduce(reduce.slot, epilogue, norm, reduce.stream);
  });
}

Status CollectiveUnitMover::finished(Track::Kind kind) const {
  return DeviceCollectives::of(*spec_.shard_comm).finish(last(kind));
}

}  // namespace fsccl
