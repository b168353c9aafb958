// A unit's gather and reduction by collectives, of NCCL, UCX or the host (collectives.h), for ranks
// that cannot map each other's memory. The slot has one layout on all ranks: a piece of it is one
// rank's part of one parameter, and lies at the same offset on every rank. A rank therefore sends
// and receives a piece at the same offset.
//
//   gather   Equal parts that lie end to end take one all-gather in place; NCCL does it with copy
//            engines if it can and is asked to. Large pieces are broadcast to their places, in one
//            group. Many small pieces are packed, gathered and unpacked, with one launch each.
//   reduce   Each rank gets its pieces from all ranks (small pieces are packed first), and one
//            launch sums them there: in rank order, in fp32, scaled, cast, with the norm.
//
// All work is in the order of the stream. With NCCL the host does not wait.
#pragma once
#include <memory>
#include <vector>

#include "comm/device/collectives.h"
#include "kernels/cuda/device_kernels.h"

namespace fsccl {

class CollectiveMover {
 public:
  struct Piece {
    int rank = 0;         // the rank that has the piece
    uint64_t offset = 0;  // bytes from the begin of the slot
    uint64_t count = 0;   // elements
    fsccl_dtype_t dtype = FSCCL_FLOAT32;
    uint64_t bytes() const { return count * dtype_size(dtype); }
  };
  struct Request {
    Communicator* comm = nullptr;
    int ordinal = 0;                           // ordinal of the GPU
    cuda::CUdeviceptr slots = 0;               // the slots of this rank
    std::vector<Piece> parameters, gradients;  // the same on all ranks
  };
  // Collective over the communicator, blocking. Returns FSCCL_ERR_NOT_AVAILABLE on all ranks if
  // kernels are missing on one.
  static Result<std::unique_ptr<CollectiveMover>> create(Request request);
  ~CollectiveMover();
  CollectiveMover(const CollectiveMover&) = delete;

  // Says that the first `first_bytes` bytes of the slots are one piece of memory, which has this
  // size on all ranks and stays so. Gathers in place may then use symmetric memory. Collective. The
  // first call with a number above 0 blocks.
  Status use_window(uint64_t first_bytes);
  // Gathers. This rank's pieces must be in the slot, which is at this offset of the slots.
  Status gather(uint64_t slot, cuda::CUstream stream);
  // The destination and the type of the sum of a gradient piece of this rank. place_sums() takes
  // them in the order of Request::gradients.
  struct Sum {
    cuda::CUdeviceptr destination = 0;
    fsccl_dtype_t dtype = FSCCL_FLOAT32;
  };
  Status place_sums(const std::vector<Sum>& sums);
  // `norm` is as in DeviceKernels::reduce.
  Status reduce(uint64_t slot, const cuda::ReduceEpilogue& epilogue, cuda::CUdeviceptr norm,
                cuda::CUstream stream);

  const char* gathers_by() const;  // the means, for reports

  // If a piece has so many bytes or more on average, a call of NCCL for each piece takes less time.
  static constexpr uint64_t kLargePiece = 256u << 10;

 private:
  enum class Transfer : uint8_t { in_place, each, packed };
  // Pieces that are packed rank by rank, aligned.
  struct Packing {
    std::vector<uint64_t> begins;                         // by rank, and the end
    std::vector<uint64_t> offsets;                        // by piece
    std::shared_ptr<const cuda::CastTable> pack, unpack;  // null if no piece is small
  };
  explicit CollectiveMover(Request request) : request_(std::move(request)) {}
  Transfer transfer_of(const std::vector<Piece>& pieces) const;
  Packing place(const std::vector<Piece>& pieces, bool equal_parts) const;
  Status make_tables();
  Status allocate();
  void make_calls();
  uint64_t parameter_bytes() const;  // bytes that are gathered in place
  uint64_t own_gradient_bytes() const;

  DeviceCollectives& on() const { return DeviceCollectives::of(*request_.comm); }
  int ranks() const { return request_.comm->size(); }
  int rank() const { return request_.comm->rank(); }

  Request request_;
  bool asked_for_window_ = false;
  const cuda::DeviceKernels* kernels_ = nullptr;  // null if there are none for this GPU
  Transfer gather_transfer_ = Transfer::each, reduce_transfer_ = Transfer::each;
  Packing parameters_, gradients_;
  std::shared_ptr<const cuda::ReduceTable> sums_;
  DeviceCall gather_call_, exchange_;  // calls on bytes
  // calls for each parameter's piece, and for each gradient's
  std::vector<DeviceCall> broadcasts_, gathers_;
  // One piece of memory has these: the packed parameters of all ranks, and the packed gradients
  // that the exchange sends and receives.
  cuda::CUdeviceptr packed_ = 0, sent_ = 0, received_ = 0;
};

}  // namespace fsccl
