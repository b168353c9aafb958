#include "unit/host/lane_operation.h"

#include "plan/collectives.h"

namespace fsccl {

LaneOperation::LaneOperation(Communicator& lane, std::string name)
    : lane_(lane), self_(static_cast<size_t>(lane.rank())), name_(std::move(name)) {
  empty_plan_.name = name_;
  empty_plan_.rank = lane.rank();
  empty_plan_.ranks = lane.size();
}

Status LaneOperation::begin(const Fingerprint& fingerprint, Chain* chain, Then first) {
  Engine& engine = lane_.engine();
  Operation* op = nullptr;
  FSCCL_TRY(engine.acquire(&op, OperationSettings{}, fingerprint));
  op->plan = &empty_plan_;
  op->owner = this;
  op->complete = first;
  chain->follow(*op);
  fsccl_status_t state;
  FSCCL_TRY(engine.submit(*op, false, &state));
  chain->passed(engine);
  return success();
}

LaneOperation::Table LaneOperation::table_of(size_t words) const {
  const Engine& engine = lane_.engine();
  Table made;
  made.mine.resize(words);
  made.all.resize(words * static_cast<size_t>(engine.ranks()));
  Shape shape;
  shape.rank = engine.rank();
  shape.ranks = engine.ranks();
  shape.count = words;
  shape.dtype = FSCCL_UINT64;
  shape.mirrored = engine.mirrored();
  made.plan = move_slots(all_gather_movement(shape), engine.turn_bytes());
  return made;
}

Completion LaneOperation::tell(Operation& op, Table& table, Then then) {
  op.inline_bindings[0] = {reinterpret_cast<std::byte*>(table.mine.data()), nullptr, 0, {}};
  op.inline_bindings[1] = {reinterpret_cast<std::byte*>(table.all.data()), nullptr, 0, {}};
  op.bindings = op.inline_bindings.data();
  op.plan = &table.plan;
  op.complete = then;
  return Completion::again;
}

ListShape LaneOperation::list_shape(ListKind kind) const {
  ListShape shape;
  shape.kind = kind;
  shape.rank = lane_.rank();
  shape.ranks = lane_.size();
  shape.mirrored = lane_.engine().mirrored();
  return shape;
}

Completion LaneOperation::move(Operation& op, const ListShape& shape, Then then) {
  buckets_ = list_slots(shape, lane_.engine().slot_bytes());
  return run_plans(op, buckets_, then);
}

Completion LaneOperation::run_plans(Operation& op, const std::vector<Plan>& plans, Then then) {
  for (size_t slots = 0; slots < kMaxTicks; slots++) bindings_.emplace_back();
  running_ = &plans;
  at_plan_ = 0;
  then_ = then;
  if (plans.empty()) return then(op);
  op.bindings = bindings_.data();
  op.plan = &plans[0];
  op.complete = plan_is_over;
  return Completion::again;
}

Completion LaneOperation::plan_is_over(Operation& op) {
  LaneOperation& owner = owner_of(op);
  if (++owner.at_plan_ == owner.running_->size()) return owner.then_(op);
  op.plan = &(*owner.running_)[owner.at_plan_];
  return Completion::again;
}

Completion LaneOperation::fail(Operation& op, size_t other, std::string_view what) const {
  Error error;
  error.code = FSCCL_ERR_PROTOCOL;
  error.rank = lane_.engine().known_as(static_cast<int>(self_));
  error.peer = lane_.engine().known_as(static_cast<int>(other));
  error.operation = op_name(op.fingerprint.op);
  error.sequence = op.fingerprint.sequence;
  error.text = fmt::format("the {}: rank {} {}", name_, error.peer, what);
  lane_.engine().fail_all(error);
  return Completion::again;  // drive() sees that the engine has failed
}

}  // namespace fsccl
