// Reduce-scatter as an exchange of the parts and one sum of them by this library's own kernel:
// every element is added in rank order in fp32 and rounded once, as fsccl.h promises, where NCCL
// would round 16-bit floats at every step and add in an order that depends on its rings. The wire
// carries the same bytes. In pieces: while one is summed on a stream of this object's, the next is
// exchanged on the caller's, by NCCL or by UCX.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "base/wait.h"
#include "comm/device/device_call.h"
#include "kernels/cuda/device_kernels.h"

namespace fsccl {

class ExchangedSum {
 public:
  struct Request {
    const cuda::Device& device;
    int ranks;
    // ends waits for the stream on which it sums
    BreakCheck broken;
    std::function<Status(const DeviceCall&)> exchange;  // an all_to_all, in the order of its stream
  };
  static Result<std::unique_ptr<ExchangedSum>> create(Request request);
  ~ExchangedSum();
  ExchangedSum(const ExchangedSum&) = delete;

  // A reduce_scatter of floats, any parts; not inside a group. The epilogue is of the sum.
  Status reduce_scatter(const DeviceCall& call, const cuda::ReduceEpilogue& epilogue);

 private:
  // One half of the scratch; while one half is summed, the other is filled.
  struct Half {
    cuda::CUdeviceptr memory;
    cuda::OwnedEvent exchanged, summed;
  };
  using Tables =
      std::map<std::pair<fsccl_dtype_t, uint64_t>, std::shared_ptr<const cuda::ReduceTable>>;
  explicit ExchangedSum(Request request) : request_(std::move(request)) {}
  Result<const cuda::ReduceTable*> table(fsccl_dtype_t dtype, uint64_t count);
  Status exchange(const DeviceCall& call, uint64_t begin, uint64_t count, const Half& half);
  Status sum(const DeviceCall& call, uint64_t begin, uint64_t count, const Half& half,
             const cuda::ReduceEpilogue& epilogue);

  const Request request_;
  const cuda::DeviceKernels* kernels_ = nullptr;
  uint64_t piece_bytes_ = 0;  // bytes of a rank's part
  cuda::CUdeviceptr scratch_ = 0, result_ = 0;
  std::optional<cuda::OwnedStream> side_;
  std::vector<Half> halves_;
  Tables tables_;  // for each length of a piece
};

// Returns true if ExchangedSum makes this sum: floats that are added (also averaged, or scaled).
bool can_sum_exchanged(const DeviceCall& call);
cuda::ReduceEpilogue epilogue_of(const DeviceCall& call, int ranks);

}  // namespace fsccl
