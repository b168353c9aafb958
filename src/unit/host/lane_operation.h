// One operation of a lane in several parts, each a plan that is made on the way: what travels, and
// how many bytes, is known then only. Ranks tell each other what differs from rank to rank, so that
// all choose alike.
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

  // Submits it behind what the chain has, and does not wait. `first` is called when it begins.
  Status begin(const Fingerprint& fingerprint, Chain* chain, Then first);

  // Words that each rank tells all; a row of each.
  struct Table {
    std::vector<uint64_t> mine, all;
    Plan plan;
  };
  Table table_of(size_t words) const;
  static Completion tell(Operation& op, Table& table, Then then);
  // Moves a list by `bindings_`, two for each tensor; it adds the slots'.
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
  static Completion bucket_is_over(Operation& op);

  Plan nothing_;
  std::vector<Plan> buckets_;  // plans of a list
  const std::vector<Plan>* running_ = nullptr;
  size_t bucket_ = 0;
  Then then_ = nullptr;
};

}  // namespace fsccl
