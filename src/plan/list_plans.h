// Collectives over a list of tensors as one operation: ranks signal once when they enter and once
// when they leave, whatever the number of tensors. Tensor t has the buffers 2t (send) and 2t + 1
// (recv); a broadcast has only recv. There are three algorithms:
//   list_direct   Ranks read and write each other's buffers, whose addresses were exchanged before
//                 (`address_exchanged`).
//   list_read     For private memory, which the system reads: ranks only read each other's buffers.
//                 In a broadcast the root may also write a share, which the system then writes.
//   list_slots    Bytes go through slots, in a series of plans. Each plan fills a slot, or in an
//                 all-gather several slots, with a bucket each: pieces of as many tensors as fit.
//                 Small tensors thus travel packed.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "plan/cost.h"
#include "plan/plan.h"

namespace fsccl {

enum class ListKind : uint8_t { all_gather, reduce_scatter, broadcast };

struct ListShape {
  ListKind kind{};
  int rank = 0, ranks = 1, root = 0;
  bool mirrored = false;  // slots are mirrored (plan.h), so only list_slots can be used
  struct Tensor {
    fsccl_dtype_t dtype = FSCCL_UINT8;
    std::vector<uint64_t> counts;    // elements of each rank's part; broadcast: one count for all
    fsccl_dtype_t received = dtype;  // type of the received elements: a reduce-scatter may convert
    bool operator==(const Tensor&) const = default;
  };
  std::vector<Tensor> tensors;

  // These return numbers of elements of tensor t: those before rank q's part, those of rank q's
  // part, and those of the whole tensor.
  uint64_t before(size_t t, int q) const;
  uint64_t part(size_t t, int q) const;
  uint64_t whole(size_t t) const;
  // These return the bytes of the send and the recv buffer of tensor t on this rank.
  uint64_t send_bytes(size_t t) const;
  uint64_t recv_bytes(size_t t) const;
  bool operator==(const ListShape&) const = default;
};

Plan list_direct(const ListShape& shape);
// `pushes` is only for a broadcast: its root writes a share of the bytes to the other ranks.
Plan list_read(const ListShape& shape, bool pushes);

// Successive elements of one tensor's part, and their offset in the slot.
struct ListRange {
  size_t tensor;
  uint64_t begin, count, offset;
};
// A plan that has the buffers of some successive tensors only: those of tensor `first` have the
// numbers 0 and 1.
struct ListBucket {
  Plan plan;
  size_t first = 0;
};

// The plans of list_slots(), which are made one by one: a list of a gigabyte has tens of thousands.
class ListBuckets {
 public:
  using List = std::vector<std::vector<ListRange>>;  // by bucket: its ranges

  ListBuckets(ListShape shape, uint64_t slot_bytes);
  size_t size() const;            // the number of plans
  int ticks(size_t index) const;  // the number of ticks of a plan
  Plan plan(size_t index) const;  // with the buffers of all tensors
  ListBucket bucket(size_t index) const;
  uint64_t memory() const;  // about what this object and all plans of bucket() take

 private:
  Plan make(size_t index, size_t first, size_t count) const;

  ListShape shape_;
  uint64_t slot_bytes_, chunk_ = 0;
  std::vector<List> parts_;            // by rank
  size_t buckets_ = 1, together_ = 1;  // buckets of the rank with most, and of a plan
};
std::vector<Plan> list_slots(const ListShape& shape, uint64_t slot_bytes);

// Predicts the time in ns of all plans of list_slots(). `shapes` are those of the two ranks that
// stand for all (cost.h).
double list_slots_ns(const std::array<ListShape, 2>& shapes, uint64_t slot_bytes,
                     const Costs& costs);

}  // namespace fsccl
