// Moves by peer-to-peer access: the ranks of a host map each other's slots, and each rank's streams
// run the plans of the unit (unit_plans.h) with copy engines, signals and kernels of this library.
#pragma once
#include <memory>

#include "unit/device/device_mover.h"

namespace fsccl {

class P2pMover final : public DeviceMover {
 public:
  static Result<std::unique_ptr<DeviceMover>> create(const Request& request);
  // Returns true if this rank reaches the slots of all other ranks.
  static bool reaches_all(const Request& request);

  Status place_shards(const std::vector<std::byte*>& shards) override;
  Status place_sharded_grads(const std::vector<std::byte*>& grads) override;
  Status begin(Track::Kind kind, cuda::CUstream stream) override {
    return track(kind).begin(stream);
  }
  Status took(Track::Kind kind, cuda::CUstream stream, OpCode what) override;
  Status gather(const Gather& gather) override;
  Status reduce(const Reduce& reduce) override;
  std::vector<cuda::CUstreamBatchMemOpParams> released(Track::Kind kind) const override {
    return track(kind).released();
  }
  void finish(Track::Kind kind) const override { track(kind).finish(); }

 private:
  P2pMover(const Request& request, std::vector<cuda::CUdeviceptr> slots)
      : spec_(request.spec),
        definition_(request.definition),
        pool_(request.pool),
        slots_(std::move(slots)) {}
  Track& track(Track::Kind kind) const {
    return kind == Track::Kind::parameters ? *parameters_ : *gradients_;
  }
  Result<std::unique_ptr<StreamProgram>> program(const Plan& plan,
                                                 const std::vector<std::byte*>& places) const;
  Status remake(std::unique_ptr<StreamProgram>& which, const Plan& plan,
                const std::vector<std::byte*>& places) const;
  // Runs the rest of an operation that was entered. `again` is that of Gather.
  Status run_begun(Track& track, cuda::CUstream stream, FunctionRef<Status()> rest) const;
  Status run(Track& track, StreamProgram& program, uint64_t slot, bool again, cuda::CUstream stream,
             const ReduceRun& reduce);

  const UnitSpec& spec_;
  const UnitDefinition& definition_;
  DevicePool& pool_;
  const std::vector<cuda::CUdeviceptr> slots_;  // by rank
  // Programs outlive tracks, which wait for what is under way.
  std::unique_ptr<StreamProgram> read_, writable_, barrier_, reduce_;
  std::unique_ptr<Track> parameters_, gradients_;
};

}  // namespace fsccl
