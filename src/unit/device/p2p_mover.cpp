#include "unit/device/p2p_mover.h"

#include <array>

#include "comm/chain.h"
#include "pool/device/device_pool.h"
#include "pool/device/reach.h"

namespace fsccl {
bool P2pMover::reaches_all(const Request& request) {
  return request.pool.slots_of(*request.spec.shard_comm).ok();
}

Result<std::unique_ptr<DeviceMover>> P2pMover::create(const Request& request) {
  Communicator& comm = *request.spec.shard_comm;
  Result<std::vector<cuda::CUdeviceptr>> slots = request.pool.slots_of(comm);
  Status mine = slots.ok() ? cuda::DeviceKernels::of(request.pool.device()).take_status()
                           : slots.take_status();
  FSCCL_TRY(all_ok(comm, std::move(mine),
                   fmt::format("make unit '{}' by peer-to-peer access", request.spec.name)));
  FSCCL_ASSIGN(
      const InboxChannel channel,
      InboxChannel::open(comm, request.pool.comm(), request.pool.device(), request.spec.name));
  std::unique_ptr<P2pMover> mover(new P2pMover(request, slots.take()));
  mover->parameters_ = std::make_unique<Track>(comm, channel, Track::Kind::parameters);
  mover->gradients_ = std::make_unique<Track>(comm, channel, Track::Kind::gradients);
  return std::unique_ptr<DeviceMover>(std::move(mover));
}

Result<std::unique_ptr<StreamProgram>> P2pMover::program(
    const Plan& plan, const std::vector<std::byte*>& places) const {
  std::vector<cuda::CUdeviceptr> addresses;
  for (std::byte* const place : places)
    addresses.push_back(reinterpret_cast<cuda::CUdeviceptr>(place));
  FSCCL_ASSIGN(StreamPlan compiled, compile(plan, 1, addresses, StreamOptions::of_process()));
  return StreamProgram::make(pool_.device(), std::move(compiled), slots_);
}

// Makes a program anew. The old program's tables go first, so that the new ones take their memory.
// An allocation might wait for all work of the GPU, and so for a peer of this process that already
// waits for this rank. The caller has finished the track.
Status P2pMover::remake(std::unique_ptr<StreamProgram>& which, const Plan& plan,
                        const std::vector<std::byte*>& places) const {
  which.reset();
  FSCCL_ASSIGN(which, program(plan, places));
  return success();
}

Status P2pMover::place_shards(const std::vector<std::byte*>& shards) {
  const UnitShape& shape = definition_.unshard_shape;
  parameters_->finish();
  FSCCL_TRY(remake(read_, unshard_private(shape, false), shards));
  FSCCL_TRY(remake(writable_, unshard_private(shape, true), shards));
  return remake(barrier_, unshard_barrier(shape), shards);
}

Status P2pMover::place_sharded_grads(const std::vector<std::byte*>& grads) {
  UnitShape shape = definition_.reduce_shape;
  // the unit's gradients in the order of the plan's buffers
  std::vector<std::byte*> places;
  std::vector<size_t>& params = shape.params.emplace();
  for (size_t i = 0; i < spec_.params.size(); i++) {
    if (spec_.params[i].frozen || definition_.layout->tied(i)) continue;
    params.push_back(i);
    places.push_back(grads[i]);
  }
  gradients_->finish();
  return remake(reduce_, reduce_grads(shape), places);
}

Status P2pMover::took(Track::Kind kind, cuda::CUstream stream, OpCode what) {
  track(kind).take_only(what);
  return run_begun(track(kind), stream, [&] { return track(kind).end(stream, false); });
}

// Runs rest(), which puts an operation on the stream for which peers already wait, and ends it. An
// error of this rank, or no memory for it, fails the communicator.
Status P2pMover::run_begun(Track& track, cuda::CUstream stream, FunctionRef<Status()> rest) const {
  Chain chain;
  chain.begin();
  Status ran = chain.run(std::array{&spec_.shard_comm->engine()},
                         [&]() -> Status { return rest().with_peer(track.rank(), -1); });
  // No rank may wait for an operation that this rank did not put on its stream.
  if (!ran.ok()) (void)track.end(stream, false).ok();
  return ran;
}

Status P2pMover::run(Track& track, StreamProgram& program, uint64_t slot, bool again,
                     cuda::CUstream stream, const ReduceRun& reduce) {
  // A rank without anything to read signals this, too, because the others cannot know it.
  const bool shows_slot = &program != barrier_.get();
  return run_begun(track, stream, [&]() -> Status {
    if (again) FSCCL_TRY(track.wait_released(stream));
    FSCCL_TRY(program.run(track, slot, stream, reduce));
    return track.end(stream, shows_slot && !program.plan().says_done);
  });
}

Status P2pMover::gather(const Gather& gather) {
  Track& track = *parameters_;
  StreamProgram* const program = (gather.kept       ? barrier_
                                  : gather.writable ? writable_
                                                    : read_)
                                     .get();
  track.enter(OpCode::unshard, gather.flags, gather.hash);
  return run(track, *program, gather.slot, gather.again, gather.stream, {});
}

Status P2pMover::reduce(const Reduce& reduce) {
  gradients_->enter(OpCode::reduce_grads, reduce.flags, reduce.hash);
  return run(*gradients_, *reduce_, reduce.slot, false, reduce.stream, reduce.run);
}

}  // namespace fsccl
