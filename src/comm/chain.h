// A chain of operations of several engines: each operation begins when the one before it is
// complete.
#pragma once
#include <span>

#include "base/function_ref.h"
#include "engine/engine.h"

namespace fsccl {

class Chain {
 public:
  Chain() = default;
  // Makes a chain that begins behind the operation that was last submitted to `engine`.
  explicit Chain(Engine& engine) : before_(&engine), sequence_(engine.submitted()) {}

  // Runs submits(), which submits the operations of one call. If it ends early, by an error or for
  // lack of memory, other ranks wait for the operations that are missing, unless nothing was
  // submitted yet. So all of `engines` fail that are not null, and this rank returns what the other
  // ranks of the first one read.
  Status run(std::span<Engine* const> engines, FunctionRef<Status()> submits);

  // Called before `op` is submitted. A thread that waits for `op` drives the operations before it.
  void follow(Operation& op) const {
    if (!before_ || before_->completed() >= sequence_) return;
    op.gate = before_->milestone();
    op.gate_position = op.gate_sequence = sequence_;
    op.gate_engine = before_;
  }
  // Lets the next operation of the chain follow the one that was last submitted to `engine`.
  void passed(Engine& engine) {
    before_ = &engine;
    sequence_ = engine.submitted();
    begin();
  }
  // Notes that the call has done something that it cannot take back, as if it had submitted an
  // operation.
  void begin() { begun_ = true; }

 private:
  Status give_up(std::span<Engine* const> engines, const Error* why) const;

  Engine* before_ = nullptr;
  uint64_t sequence_ = 0;
  bool begun_ = false;
};

}  // namespace fsccl
