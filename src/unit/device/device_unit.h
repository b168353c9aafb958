// A unit on a GPU. It has the states of any unit (unit/unit.h), its slots are in a DevicePool, and
// its operations are put on the caller's streams. Calls do not wait for peers, except those that
// make the unit, end it, or return numbers in host memory.
//
// Every rank has its own slot, and peers read it only until they have gathered, so no rank writes
// to memory that others share. If the caller may write to the slot, or the unit's sharing is copy
// on write, the stream waits until peers have read.
//
// No call of the driver waits for a stream that may wait for a peer. Where ranks are threads of one
// process, such a call could keep the peer out of the driver. The host reads results, the ends of
// steps and the ends of NCCL's calls from memory that the device can write (cuda/host_memory.h), or
// asks an event again and again.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "cuda/host_memory.h"
#include "fsccl/insight.h"
#include "pool/device/device_pool.h"
#include "unit/device/device_mover.h"
#include "unit/device/replica_sum.h"
#include "unit/unit.h"

namespace fsccl {

class DeviceUnit final : public Unit {
 public:
  // Collective over the unit's communicators, blocking.
  static Result<std::unique_ptr<DeviceUnit>> create(UnitSpec spec, DevicePool& pool);
  ~DeviceUnit() override;

  Status check_idle() override { return success(); }  // the destructor waits
  Status check_zones() override { return success(); }
  Status codec_report(fsccl_codec_report_t* report) const override;
  // Returns the memory that the unit's codecs share with those of other units.
  struct SharedBytes {
    uint64_t gathers = 0, reductions = 0;
  };
  SharedBytes shared_codec_bytes() const;
  // These do what may fail on this rank alone before it begins to gather or to reduce. The calls
  // themselves do it too; a unit by parameter asks all of its units before the first one begins.
  Status prepare_gather() const;
  Status prepare_reduce(const ReduceRequest& request);
  // Fails the communicator if an operation that is over got codes that could not be decoded.
  void look() const { mover_->look(); }
  Status begin_call(void* stream) override;
  // How far the last operation came, if it has failed.
  enum class Step : uint8_t {
    none,     // nothing was done, on this rank
    refused,  // the pool refused the slot on all ranks alike
    begun,    // other ranks count on it
  };
  Step step() const { return step_; }

  // The sizes of the unit's slots, for a declared step. 0 bytes: there is no such slot.
  struct SlotInfo {
    uint64_t key = 0, bytes = 0;
    bool held = false;
  };
  SlotInfo parameter_slot() const { return {parameters_.key, parameters_.bytes, parameters_.held}; }
  SlotInfo gradient_slot() const { return {gradients_.key, gradients_.bytes, gradients_.held}; }

 private:
  struct Slot {
    Track::Kind kind{};
    uint64_t key = 0, bytes = 0, offset = 0;
    bool held = false;
  };
  DeviceUnit(UnitSpec spec, DevicePool& pool) : Unit(std::move(spec)), pool_(pool) {}
  // `wait` must be true here and below, because an event on the stream replaces the work of an
  // operation.
  Status gather(bool writable, bool wait, fsccl_status_t* state, Submitted* submitted) override;
  Status give_back_params() override;
  Status give_back_param(size_t index) override;
  Result<std::byte*> param_slot(size_t index) override;
  Result<std::byte*> grad_slot(size_t index, void* stream) override;
  bool holds_grad(size_t) const override { return gradients_.held; }
  Status sum_grads(const ReduceRequest& request, bool wait, fsccl_status_t* state,
                   Submitted* submitted) override;
  Status check_reduced(size_t index) override;
  Status move_shards(void* const* shards) override;
  Status broadcast_shards(int root, bool wait, fsccl_status_t* state,
                          Submitted* submitted) override;
  Result<std::vector<uint64_t>> hash_shards() override;
  // Returns true if the parameter has a gradient of its own with elements on this rank.
  bool has_sharded_grad(size_t i) const {
    return has_grad(i) && !layout().tied(i) && layout().piece(comm().rank(), i).count;
  }

  // The following functions create the unit.
  size_t bytes_for_host() const;
  Status place();
  Status check_device_memory(const void* pointer, const char* what, size_t index) const;

  // Makes the tables of the places of shards and sharded gradients, for the mover and for the sum
  // over the replicas. If that fails, there are none until it succeeds.
  Status name_shards(std::vector<std::byte*> places);
  Status name_sharded_grads(std::vector<std::byte*> places);
  Status check_named(bool named) const;
  Status no_work() const;
  Status look_at_shards() const;
  Status run_begun(FunctionRef<Status()> rest) const;
  Status change_slots(FunctionRef<Status()> change) const;
  Status begin_step(Slot& slot);
  Status take(Slot& slot);  // within a step of the mover
  // Gives the slot back. `readers` are waits in addition to the mover's.
  Status give_back(Slot& slot, std::vector<cuda::CUstreamBatchMemOpParams> readers = {});
  std::byte* slot_address(const Slot& slot, uint64_t offset) const;
  uint64_t agreed(OpCode op, uint8_t flags) const;
  Status check_reduce(const ReduceRequest& request);
  Status move_sharded_grads(void* const* places);
  Status prepare_pack(const void* const* grads);
  bool is_packed(size_t index) const;
  Status make_pack(const std::vector<const void*>& from);
  Status reserve_pack();
  Status pack() const;
  Status give_result(fsccl_reduce_result_t* result, bool of_replicas) const;
  Status set_norm_of_nothing(cuda::CUdeviceptr norm) const;

  // These are for HSDP (device_unit_replicas.cpp).
  Status join_replicas();
  void leave_replicas();
  Status look_for_failure() const;  // checks all of the unit's communicators
  Status sum_over_replicas(const DeviceMover::Reduce& reduce, cuda::CUdeviceptr norm);
  Status send_state(int root);
  Result<uint64_t> hash_of_shard(size_t index, const cuda::OwnedEvent& copied) const;

  DevicePool& pool_;
  std::unique_ptr<DeviceMover> mover_;
  std::unique_ptr<ReplicaSum> replica_sum_;  // null if there is no replicate_comm
  int rank_in_pool_ = 0;
  Slot parameters_{.kind = Track::Kind::parameters}, gradients_{.kind = Track::Kind::gradients};
  bool shards_named_ = false, sharded_grads_named_ = false;
  bool joined_replicas_ = false;
  bool reduces_here_ = false;  // this rank has pieces of gradients
  // Memory for what the host reads: the norm of a reduction whose result goes there, or pieces of
  // shards that are compared.
  std::unique_ptr<cuda::HostMemory::Bytes> for_host_;

  Step step_ = Step::none;
  cuda::CUstream stream_ = nullptr;  // the stream of the present call, or of the last one
  // For a kept slot: an event behind the last reshard, when the parameters had been read.
  std::optional<cuda::OwnedEvent> read_;
  std::vector<const void*> packed_from_;  // the caller's gradients that pack_ is for
  std::shared_ptr<const cuda::CastTable> pack_;
};

}  // namespace fsccl
