// What ranks of different hosts exchange of a unit (engine/hosts.h): pieces of its parameters or gradients, as a list of tensors
// that lie in the unit's slots and stay in place. Made once; a step only says where the slots are.
#pragma once
#include <vector>

#include "engine/list.h"
#include "plan/unit_plans.h"
#include "unit/slot_set.h"

namespace fsccl {

class Communicator;

class LaneExchange {
 public:
  // How an operation begins that is submitted for it.
  struct Prepare {
    void (*call)(Operation& op, const void* context) = nullptr;
    const void* context = nullptr;
  };

  LaneExchange() = default;
  // Of the shape's parameters. `holders`: for each rank of the layout, who of `ranks` ranks brings its pieces or gets their sums;
  // below 0: these are not exchanged here. `self`: which of them this rank is.
  LaneExchange(const UnitShape& shape, const std::vector<int>& holders, int ranks, int self);

  bool empty() const { return runs_.empty(); }
  // An all-gather or a reduce-scatter among those ranks, which sums; not waited for. It is not empty.
  Status run(Communicator& among, ListKind kind, const SlotSet& slots, const Prepare& prepare);

 private:
  struct Run {  // a tensor: pieces that touch
    size_t slot = 0;
    uint64_t offset = 0, bytes = 0;
    uint64_t own = 0;  // bytes in it before this rank's
    fsccl_dtype_t dtype{};
    int last = 0;  // who has its end
  };
  void add(size_t slot, uint64_t offset, uint64_t count, fsccl_dtype_t dtype, int holder, int self);

  size_t ranks_ = 1;
  std::vector<Run> runs_;
  std::vector<size_t> counts_;  // [run][rank]
  std::vector<fsccl_tensor_t> tensors_;
};

}  // namespace fsccl
