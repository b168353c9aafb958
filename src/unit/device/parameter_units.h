// A unit by parameter on a GPU: each parameter has a slot of its own, so that it can be given back,
// or its gradient reduced, before the others. It is made of one DeviceUnit for each parameter that
// is not tied, which has the pieces of the whole unit's layout; calls go to those in the order of
// the parameters. So a gather is one launch and one batch of copies for each parameter.
#pragma once
#include <memory>
#include <vector>

#include "fsccl/insight.h"
#include "unit/device/device_unit.h"

namespace fsccl {

class ParameterUnits final : public Unit {
 public:
  // Collective over the unit's communicator, blocking.
  static Result<std::unique_ptr<ParameterUnits>> create(UnitSpec spec, DevicePool& pool);

  // Returns the unit of a parameter, or of the parameter to which it is tied.
  const DeviceUnit& unit_of(size_t index) const { return *units_[layout().owner(index)]; }

  Status check_idle() override { return success(); }  // the units' destructors wait
  Status check_zones() override { return success(); }
  Status codec_report(fsccl_codec_report_t* report) const override;

 private:
  explicit ParameterUnits(UnitSpec spec) : Unit(std::move(spec)) {}
  Status begin_call(void* stream) override;
  Status gather(bool writable, bool wait, fsccl_status_t* state, Submitted* submitted) override;
  Status give_back_params() override;
  Status give_back_param(size_t index) override;
  Result<std::byte*> param_slot(size_t index) override;
  Result<std::byte*> grad_slot(size_t index, void* stream) override;
  bool holds_grad(size_t index) const override;
  Status sum_grads(const ReduceRequest& request, bool wait, fsccl_status_t* state,
                   Submitted* submitted) override;
  Status check_reduced(size_t index) override;
  Status move_shards(void* const* shards) override;
  Status broadcast_shards(int root, bool wait, fsccl_status_t* state,
                          Submitted* submitted) override;
  Result<std::vector<uint64_t>> hash_shards() override;

  void note_places();
  DeviceUnit& unit(size_t index) { return *units_[layout().owner(index)]; }
  Status run_each(std::span<const size_t> units, FunctionRef<Status(size_t)> operate) const;
  static ReduceRequest request_of(size_t index, const ReduceRequest& request);
  Status sum_grad(size_t index, const ReduceRequest& request, bool wait, fsccl_status_t* state,
                  Submitted* submitted);

  std::vector<std::unique_ptr<DeviceUnit>> units_;  // per parameter; null for a tied one
  void* stream_ = nullptr;                          // the stream of the present call
};

}  // namespace fsccl
