// A chain of operations of several engines: each operation begins when the one before is over.
#pragma once
#include "engine/engine.h"

namespace fsccl {

class Chain {
 public:
  Chain() = default;
  // The chain begins behind the operation that was last submitted to `engine`.
  explicit Chain(Engine& engine) { passed(engine); }

  // Called before `op` is submitted. A thread that waits for `op` drives the operations before it.
  void follow(Operation& op) const {
    if (!before_ || before_->completed() >= sequence_) return;
    op.gate = before_->milestone();
    op.gate_position = op.gate_sequence = sequence_;
    op.gate_engine = before_;
  }
  // The next operation of the chain follows the operation that was last submitted to `engine`.
  void passed(Engine& engine) {
    before_ = &engine;
    sequence_ = engine.submitted();
  }

 private:
  Engine* before_ = nullptr;
  uint64_t sequence_ = 0;
};

}  // namespace fsccl
