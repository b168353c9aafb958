// One operation of a lane that has several stages. The plan of a stage is made when the stage
// before it ends, because the bytes to move are known only then. The ranks exchange the facts that
// differ between them, so that all make the same choices.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "comm/chain.h"
#include "comm/communicator.h"
#include "plan/list_plans.h"

namespace fsccl {

class LaneOperation {
 public:
  virtual ~LaneOperation() = default;
  LaneOperation(const LaneOperation&) = delete;
  LaneOperation& operator=(const LaneOperation&) = delete;

 protected:
  LaneOperation(Communicator& lane, std::string name);
  using Then = Completion (*)(Operation&);
  static LaneOperation& owner_of(Operation& op) { return *static_cast<LaneOperation*>(op.owner); }

  // Submits the operation behind those of the chain, and does not wait. `first` is called when it
  // begins. Like each `then` it gives the operation the plan of the next stage, or ends it.
  Status begin(const Fingerprint& fingerprint, Chain* chain, Then first);

  // The words that the ranks exchange: this rank's own words, and a row of words for each rank.
  struct Table {
    std::vector<uint64_t> mine, all;
    Plan plan;
  };
  Table table_of(size_t words) const;
  static Completion tell(Operation& op, Table& table, Then then);
  // Moves a list of tensors. `bindings_` has two bindings for each tensor; those of slots are
  // added.
  Completion move(Operation& op, const ListShape& shape, Then then);
  // Runs plans one after the other with `bindings_`, to which it adds those of the slots. The plans
  // must not change until `then` is called.
  Completion run_plans(Operation& op, const std::vector<Plan>& plans, Then then);
  ListShape list_shape(ListKind kind) const;
  std::vector<Binding> bindings_;

  // Fails all ranks of the lane with FSCCL_ERR_PROTOCOL. The error says that rank `other` did
  // `what`.
  Completion fail(Operation& op, size_t other, std::string_view what) const;

  Communicator& lane_;
  const size_t self_;
  const std::string name_;

 private:
  static Completion plan_is_over(Operation& op);

  Plan empty_plan_;
  std::vector<Plan> buckets_;  // plans of the list that move() moves
  const std::vector<Plan>* running_ = nullptr;
  size_t at_plan_ = 0;  // the index in *running_ of the plan that runs
  Then then_ = nullptr;
};

}  // namespace fsccl
