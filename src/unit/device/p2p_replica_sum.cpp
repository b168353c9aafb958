#include "unit/device/p2p_replica_sum.h"

#include <array>

#include "comm/chain.h"
#include "pool/device/device_pool.h"
#include "pool/device/reach.h"

namespace fsccl {

using Kind = StreamAction::Kind;

Result<std::unique_ptr<ReplicaSum>> P2pReplicaSum::create(const DeviceMover::Request& request) {
  Communicator& replicas = *request.spec.replicate_comm;
  Result<std::vector<cuda::CUdeviceptr>> slots = request.pool.slots_of(replicas);
  Status mine = slots.ok() ? success()
                           : fail(slots.status().code(), "unit '{}', over its replicate_comm: {}",
                                  request.spec.name, slots.status().text());
  FSCCL_TRY(all_ok(replicas, std::move(mine),
                   fmt::format("sum unit '{}' over replicas", request.spec.name)));
  FSCCL_ASSIGN(
      const InboxChannel channel,
      InboxChannel::open(replicas, request.pool.comm(), request.pool.device(), request.spec.name));
  std::unique_ptr<P2pReplicaSum> made(new P2pReplicaSum(request, slots.take()));
  made->track_ = std::make_unique<Track>(replicas, channel, Track::Kind::gradients);
  return std::unique_ptr<ReplicaSum>(std::move(made));
}

Status P2pReplicaSum::place(const ShardMemory& grads) {
  StreamPlan plan;
  plan.rank = track_->rank();
  plan.ranks = track_->ranks();
  StreamAction cast{.kind = Kind::cast}, reduce{.kind = Kind::reduce};
  const fsccl_dtype_t dtype = spec_.grad_dtype;
  uint64_t offset = 0;
  for (size_t i = 0; i < spec_.params.size(); i++) {
    const uint64_t count = definition_.layout->piece(spec_.shard_comm->rank(), i).count;
    if (spec_.params[i].frozen || definition_.layout->tied(i) || !count) continue;
    const auto place = reinterpret_cast<cuda::CUdeviceptr>(grads.places[i]);
    cast.casts.push_back({place, offset, count, dtype, dtype});
    reduce.reduces.push_back({offset, place, count, dtype, dtype});
    offset += room(spec_, count);
  }
  if (!cast.casts.empty()) plan.actions.push_back(std::move(cast));
  plan.actions.push_back({.kind = Kind::signal});
  plan.actions.push_back({.kind = Kind::wait});
  if (!reduce.reduces.empty()) plan.actions.push_back(std::move(reduce));
  track_->finish();
  program_.reset();  // the new one takes the memory of its tables (p2p_mover.cpp)
  FSCCL_ASSIGN(program_, StreamProgram::make(pool_.device(), std::move(plan), slots_));
  return success();
}

Status P2pReplicaSum::run(Call& call) {
  FSCCL_TRY(track_->wait_for(std::move(call.before), call.stream));
  FSCCL_TRY(program_->run(*track_, call.slot, call.stream,
                          {.epilogue = {.divisor = call.divisor}, .norm = call.norm}));
  return track_->end(call.stream, true);
}

// Sums after enter(), from which on the replicas wait for this rank. An error of this rank
// therefore fails the communicator.
Status P2pReplicaSum::add(Call call) {
  FSCCL_TRY(track_->begin(call.stream));
  track_->enter(OpCode::all_reduce, 0, call.hash);
  Chain chain;
  chain.begin();
  Status ran = chain.run(std::array{&spec_.replicate_comm->engine()},
                         [&]() -> Status { return run(call).with_peer(track_->rank(), -1); });
  // No rank may wait for an operation that this rank did not put on its stream.
  if (!ran.ok()) (void)track_->end(call.stream, false).ok();
  return ran;
}

}  // namespace fsccl
