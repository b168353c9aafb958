// A unit's plan as a program of a stream (stream_plan.h), with its tables in device memory. It is
// made once, with the unit. Each run gets the present offset of the unit's slot, which is the same
// on all ranks.
#pragma once
#include <memory>
#include <vector>

#include "unit/device/stream_plan.h"
#include "unit/device/track.h"

namespace fsccl {

struct ReduceRun {
  cuda::ReduceEpilogue epilogue;
  cuda::CUdeviceptr norm = 0;
};

class StreamProgram {
 public:
  // `slots` has the addresses in this process at which the slots of each rank begin.
  static Result<std::unique_ptr<StreamProgram>> make(const cuda::Device& device, StreamPlan plan,
                                                     std::vector<cuda::CUdeviceptr> slots);
  // Runs within a step of `track` that was entered. Every rank's slot is at `offset` of its slots.
  Status run(Track& track, uint64_t offset, cuda::CUstream stream, const ReduceRun& reduce = {});
  const StreamPlan& plan() const { return plan_; }

 private:
  StreamProgram(const cuda::Device& device, const cuda::DeviceKernels& kernels, StreamPlan plan,
                std::vector<cuda::CUdeviceptr> slots)
      : device_(device), kernels_(kernels), plan_(std::move(plan)), slots_(std::move(slots)) {}
  struct Tables {  // tables of an action
    std::shared_ptr<const cuda::CastTable> casts;
    std::shared_ptr<const cuda::ReduceTable> reduces;
    std::vector<size_t> sizes;
  };
  Result<Tables> make_tables(const StreamAction& action) const;
  static constexpr size_t kMostInBatch = 512;
  cuda::CUresult copy_batches(const std::vector<size_t>& sizes, cuda::CUstream stream);
  // Runs the copies of a copy or a place.
  Status run_copies(const StreamAction& action, const Tables& tables, uint64_t offset,
                    cuda::CUstream stream);
  cuda::CUdeviceptr own() const { return slots_[static_cast<size_t>(plan_.rank)]; }

  const cuda::Device& device_;
  const cuda::DeviceKernels& kernels_;
  StreamPlan plan_;
  // The last three belong to the present run.
  std::vector<cuda::CUdeviceptr> slots_, bases_, sources_, destinations_;
  std::vector<Tables> tables_;  // by action
  // The driver takes several copies in a call.
  bool takes_batches_ = false;
};

}  // namespace fsccl
