// A reduce-scatter as an exchange of the parts, which this library's own kernel sums. Every element
// is added in rank order in fp32 and rounded once, as fsccl.h promises. NCCL would round 16-bit
// floats at every step, and add in an order that depends on its rings. It sends as many bytes. The
// sum is made in pieces: while one piece is summed on a stream of this object, the next is
// exchanged on the caller's stream, by NCCL or by UCX.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "base/wait.h"
#include "comm/chain.h"
#include "comm/device/device_call.h"
#include "kernels/cuda/device_kernels.h"

namespace fsccl {

class ExchangedSum {
 public:
  struct Request {
    const cuda::Device& device;
    Engine& engine;  // it fails if a sum ends early after its first exchange
    int ranks;
    // Returns an error if the wait for the stream on which it sums must end.
    BreakCheck broken;
    std::function<Status(const DeviceCall&)> exchange;  // runs an all_to_all, in stream order
  };
  static Result<std::unique_ptr<ExchangedSum>> create(Request request);
  ~ExchangedSum();
  ExchangedSum(const ExchangedSum&) = delete;

  // Runs a reduce_scatter of floats with any parts, not inside a group. The epilogue is applied to
  // the sum.
  Status reduce_scatter(const DeviceCall& call, const cuda::ReduceEpilogue& epilogue);

 private:
  // One half of the scratch memory. While one half is summed, the other is filled.
  struct Half {
    cuda::CUdeviceptr memory;
    cuda::OwnedEvent exchanged, summed;
  };
  using Tables =
      std::map<std::pair<fsccl_dtype_t, uint64_t>, std::shared_ptr<const cuda::ReduceTable>>;
  explicit ExchangedSum(Request request) : request_(std::move(request)) {}
  Result<const cuda::ReduceTable*> table(fsccl_dtype_t dtype, uint64_t count);
  Status exchange(const DeviceCall& call, uint64_t begin, uint64_t count, const Half& half,
                  Chain& chain);
  Status sum(const DeviceCall& call, uint64_t begin, uint64_t count, const Half& half,
             const cuda::ReduceEpilogue& epilogue);

  const Request request_;
  const cuda::DeviceKernels* kernels_ = nullptr;
  uint64_t piece_bytes_ = 0;  // bytes of a rank's part
  cuda::CUdeviceptr scratch_ = 0, result_ = 0;
  std::optional<cuda::OwnedStream> side_;
  std::vector<Half> halves_;
  Tables tables_;  // one for each length of a piece
};

// Returns true if ExchangedSum makes this sum: floats that are added, averaged or scaled.
bool can_sum_exchanged(const DeviceCall& call);
cuda::ReduceEpilogue epilogue_of(const DeviceCall& call, int ranks);

}  // namespace fsccl
