// A reduction of some of a unit's gradients: its plan, which is made once, and the bindings of the
// plan's buffers. The next reduction of a gradient begins when the last one is over, so the
// bindings of an operation in flight never change.
#pragma once
#include <utility>
#include <vector>

#include "comm/collective.h"
#include "unit/host/lane_exchange.h"

namespace fsccl {

struct PlannedUnit {
  explicit PlannedUnit(Plan made = {}) : plan(std::move(made)) {
    count_bytes(plan, &bytes_read, &bytes_written);
  }

  Plan plan;
  uint64_t bytes_read = 0, bytes_written = 0;
};

struct GradReduction {
  std::vector<size_t> params;  // parameters in order; all have a gradient, none is tied
  std::vector<size_t> slots;   // slots of their gradients: the plan's first buffers
  PlannedUnit planned;
  Plan enters;  // the plan without its sums, if those are made apart (engine/sums_apart.h)
  LaneExchange between_hosts;
  std::vector<Binding> bindings;  // bindings of the slots and the outputs
  // by buffer, without the first: the caller's gradients of this rank's own pieces
  std::vector<const void*> own;

  Binding& output(size_t k) { return bindings[slots.size() + k]; }  // sharded gradient of params[k]
  const void*& own_piece(size_t k) { return own[slots.size() + k - 1]; }
  // Returns the parameter of the buffer of a sharded gradient.
  size_t param_of(uint32_t buffer) const { return params[buffer - slots.size()]; }
};

}  // namespace fsccl
