// The exchange of a unit's bytes between ranks of different hosts (comm/hosts.h): pieces of its
// parameters or gradients, as a list of tensors that lie in the unit's slots. It is made once; a
// step only gives the addresses of the slots and of the sharded gradients.
#pragma once
#include <vector>

#include "base/function_ref.h"
#include "comm/list.h"
#include "plan/unit_plans.h"
#include "unit/host/slot_set.h"

namespace fsccl {

class Communicator;
struct Operation;

class LaneExchange {
 public:
  enum class Kind : uint8_t {
    parameters,     // parameters are gathered in place
    contributions,  // gradients are summed into the sharded gradients
    partial_sums,   // sums of hosts, at the offsets of UnitShape::sums, are summed in place
  };

  LaneExchange() = default;
  // Makes the exchange of the shape's parameters. `holders` has, for each rank of the layout, the
  // rank among `ranks` that sends its pieces or gets their sums. If it is below 0, the pieces are
  // not exchanged here. `self` is this rank's number among them. With `ranks_apart` no range has
  // pieces of several ranks of the layout, so ranges do not depend on which ranks share a host.
  LaneExchange(const UnitShape& shape, Kind kind, const std::vector<int>& holders, int ranks,
               int self, bool ranks_apart = false);

  bool empty() const { return runs_.empty(); }
  Kind kind() const { return kind_; }
  // A range that the rank `holder` sends, or whose sums it gets.
  struct Range {
    size_t slot = 0;
    uint64_t offset = 0, bytes = 0;  // in the slot
    fsccl_dtype_t dtype{};
    size_t holder = 0;
    size_t parameter = 0;  // for contributions
  };
  // Returns the ranges of all ranks in the order of the tensors.
  std::vector<Range> ranges() const;
  // Submits an all-gather, or a reduce-scatter that sums, among those ranks, and does not wait. The
  // exchange must not be empty. For contributions `sharded_grads` has the sharded gradients by
  // parameter.
  Status run(Communicator& among, const SlotSet& slots,
             const std::vector<std::byte*>& sharded_grads, FunctionRef<void(Operation&)> prepare);

 private:
  struct Run {  // a tensor of the list: pieces that touch
    size_t slot = 0;
    uint64_t offset = 0, bytes = 0;
    uint64_t own = 0;  // the bytes of it before this rank's pieces
    fsccl_dtype_t dtype{};
    int last = 0;          // rank that holds its end
    size_t last_rank = 0;  // rank of the layout that has its end
    size_t parameter = 0;  // for contributions, one parameter for all pieces
  };
  struct Part {
    size_t slot = 0;
    uint64_t offset = 0, count = 0;
    fsccl_dtype_t dtype{};
    int holder = 0;
    size_t rank = 0;  // rank of the layout
    size_t parameter = 0;
  };
  void add(const Part& part, fsccl_dtype_t received, int self);

  Kind kind_ = Kind::parameters;
  size_t ranks_ = 1;
  bool ranks_apart_ = false;
  std::vector<Run> runs_;
  std::vector<size_t> counts_;  // [run][rank]
  std::vector<fsccl_tensor_t> tensors_;
  std::vector<fsccl_dtype_t> received_;
};

}  // namespace fsccl
