// A unit's gather and reduction by collectives, of NCCL, UCX or the host (collectives.h), where
// peers' memory cannot be mapped. The slot has one layout on all ranks: a piece of it is one rank's
// part of one parameter, and lies at the same offset everywhere, so what a rank sends is where it
// is to arrive.
//
//   gather   equal parts end to end: one all-gather in place, by copy engines where NCCL can and is
//            asked to; large pieces: each broadcast to its place, in one group; many small ones:
//            packed, gathered and unpacked, with one launch each
//   reduce   the pieces of each rank go to it (packed first where they are small), and one launch
//            sums them there: in rank order, in fp32, scaled, cast, with the norm
//
// Everything is in the order of the stream; by NCCL nothing waits.
#pragma once
#include <memory>
#include <vector>

#include "comm/device/collectives.h"
#include "kernels/cuda/device_kernels.h"

namespace fsccl {

class CollectiveMover {
 public:
  struct Piece {
    int rank = 0;         // rank that holds it
    uint64_t offset = 0;  // bytes, in the slot
    uint64_t count = 0;   // elements
    fsccl_dtype_t dtype = FSCCL_FLOAT32;
    uint64_t bytes() const { return count * dtype_size(dtype); }
  };
  struct Request {
    Communicator* comm = nullptr;
    int ordinal = 0;                           // ordinal of the GPU
    cuda::CUdeviceptr slots = 0;               // this rank's
    std::vector<Piece> parameters, gradients;  // the same on all ranks
  };
  // Collective over the communicator, blocking. FSCCL_ERR_NOT_AVAILABLE on all ranks when kernels
  // are missing on one.
  static Result<std::unique_ptr<CollectiveMover>> create(Request request);
  ~CollectiveMover();
  CollectiveMover(const CollectiveMover&) = delete;

  // So many bytes at the beginning of the slots are one piece of memory, as many on all ranks, and
  // stay so: what gathers in place there may go by symmetric memory. Collective, and blocks at the
  // first call with any.
  Status use_window(uint64_t first_bytes);
  // This rank's pieces lie in the slot, at this offset of the slots; then all ranks' do.
  Status gather(uint64_t slot, cuda::CUstream stream);
  // Where the sums of this rank's gradient pieces go, in the order of Request::gradients, and as
  // what.
  struct Sum {
    cuda::CUdeviceptr destination = 0;
    fsccl_dtype_t dtype = FSCCL_FLOAT32;
  };
  Status place_sums(const std::vector<Sum>& sums);
  // norm: as DeviceKernels::reduce has it.
  Status reduce(uint64_t slot, const cuda::ReduceEpilogue& epilogue, cuda::CUdeviceptr norm,
                cuda::CUstream stream);

  const char* gathers_by() const;  // for reports

  // bytes, on average: from here on a call of NCCL's for each costs less
  static constexpr uint64_t kLargePiece = 256u << 10;

 private:
  enum class Transfer : uint8_t { in_place, each, packed };
  // Pieces packed rank by rank, aligned.
  struct Packing {
    std::vector<uint64_t> begins;                         // by rank, and the end
    std::vector<uint64_t> offsets;                        // by piece
    std::shared_ptr<const cuda::CastTable> pack, unpack;  // null where nothing is small
  };
  explicit CollectiveMover(Request request) : request_(std::move(request)) {}
  Transfer way_of(const std::vector<Piece>& pieces) const;
  Packing place(const std::vector<Piece>& pieces, bool equal_parts) const;
  Status make_tables();
  Status allocate();
  void make_calls();
  uint64_t parameter_bytes() const;  // gathered in place
  uint64_t own_gradient_bytes() const;

  DeviceCollectives& on() const { return DeviceCollectives::of(*request_.comm); }
  int ranks() const { return request_.comm->size(); }
  int rank() const { return request_.comm->rank(); }

  Request request_;
  bool asked_for_window_ = false;
  const cuda::DeviceKernels* kernels_ = nullptr;  // null: none for this GPU
  Transfer gather_way_ = Transfer::each, reduce_way_ = Transfer::each;
  Packing parameters_, gradients_;
  std::shared_ptr<const cuda::ReduceTable> sums_;
  DeviceCall gather_call_, exchange_;  // calls on bytes
  // calls for each parameter's piece, and for each gradient's
  std::vector<DeviceCall> broadcasts_, gathers_;
  // Packed parameters of all ranks; of gradients, what the exchange sends, and what it receives. In
  // one piece of memory.
  cuda::CUdeviceptr packed_ = 0, sent_ = 0, received_ = 0;
};

}  // namespace fsccl
