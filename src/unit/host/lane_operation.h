// One operation of a lane that goes in several stages. Each stage has a plan that is made on the
// way, because only then is it known what travels, and how many bytes. The ranks tell each other
// what differs from rank to rank, so that all choose alike.
#pragma once
#include <string>
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

  // The words that each rank tells all the others: its own, and a row of each rank.
  struct Table {
    std::vector<uint64_t> mine, all;
    Plan plan;
  };
  Table table_of(size_t words) const;
  static Completion tell(Operation& op, Table& table, Then then);
  // Moves a list of tensors, whose memory `bindings_` has, two for each; adds those of the slots.
  Completion move(Operation& op, const ListShape& shape, Then then);
  // Runs plans one after the other by `bindings_`, to which it adds the slots'. The plans stay as
  // they are until `then`.
  Completion run_plans(Operation& op, const std::vector<Plan>& plans, Then then);
  ListShape list_shape(ListKind kind) const;
  std::vector<Binding> bindings_;

  // All ranks of the lane get FSCCL_ERR_PROTOCOL: rank `other` of the lane did `what`.
  Completion fail(Operation& op, size_t other, const char* what) const;

  Communicator& lane_;
  const size_t self_;
  const std::string name_;

 private:
  static Completion plan_is_over(Operation& op);

  Plan empty_plan_;
  std::vector<Plan> buckets_;  // plans of the list that move() moves
  const std::vector<Plan>* running_ = nullptr;
  size_t at_plan_ = 0;  // the one of *running_ that runs
  Then then_ = nullptr;
};

}  // namespace fsccl
