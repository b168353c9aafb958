#include "unit/device/replica_calls.h"

#include <array>

#include "comm/chain.h"
#include "pool/device/device_pool.h"
#include "pool/device/reach.h"

namespace fsccl {

Result<std::unique_ptr<ReplicaSum>> ReplicaCalls::create(const DeviceMover::Request& request) {
  std::unique_ptr<ReplicaCalls> made(new ReplicaCalls(request));
  FSCCL_TRY(made->on().prepare(request.pool.device().ordinal()));
  FSCCL_ASSIGN(made->kernels_, cuda::DeviceKernels::of(request.pool.device()));
  FSCCL_ASSIGN(made->added_, cuda::OwnedEvent::create(request.pool.device()));
  return std::unique_ptr<ReplicaSum>(std::move(made));
}

ReplicaCalls::~ReplicaCalls() {
  // a stream may still use them
  if (added_ && !on().finish(*added_).ok()) (void)new auto(std::move(norms_));
}

void ReplicaCalls::finish() const { (void)on().finish(*added_).ok(); }

// Makes the calls for the gradients' places. The gaps in the block are zeros, so their sums are
// zeros.
Status ReplicaCalls::place(const ShardMemory& grads) {
  const Communicator& replicas = *spec_.replicate_comm;
  std::vector<cuda::ReduceRange> pieces;
  CollectiveCall call;
  call.op = OpCode::all_reduce;
  call.dtype = spec_.grad_dtype;
  call.reduction = FSCCL_SUM;
  calls_.clear();
  const auto add = [&](std::byte* begin, uint64_t elements) {
    call.input = call.output = begin;
    call.count = elements;
    calls_.push_back(device_call(call, replicas.rank(), replicas.size(), nullptr));
  };
  bool in_block = false;
  for (size_t i = 0; i < spec_.params.size(); i++) {
    const uint64_t count = definition_.layout->piece(spec_.shard_comm->rank(), i).count;
    if (spec_.params[i].frozen || definition_.layout->tied(i) || !count) continue;
    std::byte* const place = grads.places[i];
    const auto address = reinterpret_cast<cuda::CUdeviceptr>(place);
    pieces.push_back({address, address, count, spec_.grad_dtype, spec_.grad_dtype});
    if (grads.in_block(place))
      in_block = true;
    else
      add(place, count);
  }
  if (in_block) add(grads.block, grads.block_bytes / dtype_size(spec_.grad_dtype));
  FSCCL_TRY(on().finish(*added_));  // a stream may use the old ones
  norms_.reset();
  if (pieces.empty()) return success();
  FSCCL_ASSIGN(norms_, kernels_->make_reduces(pieces, 1));
  return success();
}

Status ReplicaCalls::run(const Call& call) {
  // If 16-bit sums are divided by the number of replicas, the collective makes averages, which are
  // rounded only once. Other sums are divided afterwards.
  const bool average =
      dtype_size(spec_.grad_dtype) == 2 && call.divisor == spec_.replicate_comm->size();
  const int64_t divisor = average ? 1 : call.divisor;
  for (DeviceCall& one : calls_)
    one.stream = call.stream, one.reduction = average ? FSCCL_AVG : FSCCL_SUM;
  const cuda::Current current(pool_.device());
  FSCCL_TRY(added_->make_wait(call.stream));
  FSCCL_TRY(on().run(calls_));
  const cuda::CUdeviceptr nowhere = 0;  // the table has whole addresses
  if ((call.norm || divisor != 1) && norms_)
    FSCCL_TRY(kernels_->reduce(*norms_, &nowhere, {.divisor = divisor}, call.norm, call.stream));
  return added_->record(call.stream);
}

// Adds up the replicas' sums. The others have begun, so an error of this rank fails the
// communicator.
Status ReplicaCalls::add(Call call) {
  Chain chain;
  chain.begin();
  return chain.run(std::array{&spec_.replicate_comm->engine()}, [&] { return run(call); });
}

}  // namespace fsccl
