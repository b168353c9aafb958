// Collectives over a list of tensors as one operation: one enter and one leave, whatever the number
// of tensors. Tensor t is buffers 2t (send) and 2t + 1 (recv); a broadcast has recv alone. Two
// ways:
//   list_direct    between the ranks' buffers, whose locations were exchanged before
//                  (`address_exchanged`)
//   list_slots     through slots: a series of plans, each of which fills a slot (an all-gather:
//                  some slots) with pieces of as many tensors as it holds, so that small tensors
//                  travel packed
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace fsccl {

enum class ListKind : uint8_t { all_gather, reduce_scatter, broadcast };

struct ListShape {
  ListKind kind{};
  int rank = 0, ranks = 1, root = 0;
  bool mirrored = false;  // slots are (plan.h): then list_direct cannot be used
  struct Tensor {
    fsccl_dtype_t dtype = FSCCL_UINT8;
    std::vector<uint64_t> counts;    // elements, of each rank's part; broadcast: one
    fsccl_dtype_t received = dtype;  // type of the received elements: a reduce-scatter may convert
    bool operator==(const Tensor&) const = default;
  };
  std::vector<Tensor> tensors;

  // Elements of tensor t: before rank q's part, in it, and in all.
  uint64_t before(size_t t, int q) const;
  uint64_t part(size_t t, int q) const;
  uint64_t whole(size_t t) const;
  // Bytes of the send and recv buffer of tensor t on this rank.
  uint64_t send_bytes(size_t t) const;
  uint64_t recv_bytes(size_t t) const;
  bool operator==(const ListShape&) const = default;
};

Plan list_direct(const ListShape& shape);
std::vector<Plan> list_slots(const ListShape& shape, uint64_t slot_bytes);

}  // namespace fsccl
