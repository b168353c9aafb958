// A unit on a GPU and its replicas (HSDP): the second phase of a reduction, and how shards of
// replicas are made equal or compared.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/hash.h"
#include "comm/chain.h"
#include "comm/device/collectives.h"
#include "unit/device/device_unit.h"
#include "unit/replica_check.h"

namespace fsccl {
namespace {

constexpr size_t kPiece = 64 << 10;  // bytes of a shard that are compared at once

}  // namespace

size_t DeviceUnit::bytes_for_host() const {
  return spec_.replicate_comm ? kPiece : sizeof(cuda::DeviceNorm);
}

// Makes the replicate_comm an heir of the shard_comm. When the shard_comm fails, its streams
// continue with garbage in memory. The replicas would sum it up, so they must know of the failure
// first.
Status DeviceUnit::join_replicas() {
  if (!spec_.replicate_comm) return success();
  spec_.replicate_comm->dependents++;
  joined_replicas_ = true;
  engine().make_heir(spec_.replicate_comm->engine());
  FSCCL_ASSIGN(replica_sum_, ReplicaSum::create({spec_, definition_, pool_}));
  return success();
}

void DeviceUnit::leave_replicas() {
  replica_sum_.reset();  // waits for its work
  if (!spec_.replicate_comm || !joined_replicas_) return;
  engine().disinherit(spec_.replicate_comm->engine());
  spec_.replicate_comm->dependents--;
}

Status DeviceUnit::look_for_failure() const {
  FSCCL_TRY(look_at_shards());
  return spec_.replicate_comm ? spec_.replicate_comm->engine().intact() : success();
}

// Sums over the replicas. The first phase cannot be taken back. So if the sum does not begin on
// this rank, the replicate_comm fails. The shard_comm does not.
Status DeviceUnit::sum_over_replicas(const DeviceMover::Reduce& reduce, cuda::CUdeviceptr norm) {
  Chain chain;
  chain.begin();
  Engine& replicas = spec_.replicate_comm->engine();
  return chain.run(std::array{&replicas}, [&]() -> Status {
    FSCCL_TRY(replicas.intact());
    ReplicaSum::Call call;
    call.stream = reduce.stream;
    call.slot = reduce.slot;
    call.before = mover_->released(Track::Kind::gradients);
    call.norm = norm;
    call.divisor = scaling_.replicas_divisor();
    call.hash = mix_in_order(agreed(OpCode::all_reduce, 0), static_cast<uint64_t>(call.divisor));
    return replica_sum_->add(std::move(call));
  });
}

Status DeviceUnit::broadcast_shards(int root, bool wait, fsccl_status_t* state, Submitted*) {
  if (!wait) return no_work();
  FSCCL_TRY(look_for_failure());
  DeviceCollectives& on = DeviceCollectives::of(*spec_.replicate_comm);
  FSCCL_TRY(on.prepare(pool_.device().ordinal()));
  // The last unshard reads the shards before this operation, and the next one after it.
  FSCCL_TRY(mover_->begin(Track::Kind::parameters, stream_));
  Status sent = send_state(root);
  FSCCL_TRY(mover_->took(Track::Kind::parameters, stream_, OpCode::broadcast_state));
  changed_ = true;
  *state = FSCCL_OK;
  return sent;
}

// Sends all shards in one call. The unit's own block is one piece of it.
Status DeviceUnit::send_state(int root) {
  Communicator& replicas = *spec_.replicate_comm;
  std::vector<DeviceCall> calls;
  CollectiveCall call;
  call.op = OpCode::broadcast;
  call.root = root;
  const auto add = [&](std::byte* begin, uint64_t bytes) {
    call.output = begin;
    call.count = bytes;
    calls.push_back(device_call(call, replicas.rank(), replicas.size(), stream_));
  };
  bool in_block = false;
  for (size_t i = 0; i < count(); i++) {
    const uint64_t elements = layout().piece(comm().rank(), i).count;
    if (layout().tied(i) || !elements) continue;
    if (shards_.in_block(shards_.places[i]))
      in_block = true;
    else
      add(shards_.places[i], elements * dtype_size(spec_.params[i].dtype));
  }
  if (in_block) add(shards_.block, shards_.block_bytes);
  return DeviceCollectives::of(replicas).run(calls);
}

// Copies the shard in pieces, in the order of the stream. The stream may wait for peers, so the
// copy goes through pinned memory and not directly into ordinary memory (host_memory.h).
Result<uint64_t> DeviceUnit::hash_of_shard(size_t index, const cuda::OwnedEvent& copied) const {
  const cuda::Device& device = pool_.device();
  const uint64_t bytes = layout().piece(comm().rank(), index).count *
                         dtype_size(spec_.params[layout().owner(index)].dtype);
  const auto from = reinterpret_cast<cuda::CUdeviceptr>(shards_.places[index]);
  std::vector<std::byte> copy(bytes);
  for (uint64_t begin = 0; begin < bytes; begin += kPiece) {
    const uint64_t piece = std::min<uint64_t>(bytes - begin, kPiece);
    FSCCL_TRY(device.check(
        "cuMemcpyAsync",
        device.driver().cuMemcpyAsync(for_host_->device(), from + begin, piece, stream_)));
    FSCCL_TRY(copied.record(stream_));
    FSCCL_TRY(copied.finish(comm().deadline(), [this] { return comm().engine().intact(); }));
    std::memcpy(copy.data() + begin, for_host_->as<std::byte>(), piece);
  }
  return hash_shard(copy.data(), bytes);
}

Result<std::vector<uint64_t>> DeviceUnit::hash_shards() {
  FSCCL_TRY(look_for_failure());
  FSCCL_TRY(begin_call(stream_));
  const cuda::Current current(pool_.device());
  FSCCL_ASSIGN(const cuda::OwnedEvent copied, cuda::OwnedEvent::create(pool_.device()));
  std::vector<uint64_t> hashes(count());
  for (size_t i = 0; i < count(); i++) {
    FSCCL_ASSIGN(hashes[i], hash_of_shard(i, copied));
  }
  FSCCL_TRY(look_for_failure());
  return hashes;
}

}  // namespace fsccl
