// How an engine makes sums apart: how the sums are submitted, which operations go behind them, and
// how an operation waits for a slot that they free.
#include "engine/sums_apart.h"

#include "engine/engine.h"

namespace fsccl {

Status Engine::submit_apart(Operation& enters, Operation& sums, uint64_t position, bool wait,
                            bool later, fsccl_status_t* state) {
  Engine& makes = *apart_.engine();
  const uint64_t number = enters.fingerprint.sequence;
  sums.lets_pass = this;
  apart_.add(number, sums.fingerprint.sequence, position);
  FSCCL_TRY(submit(enters, wait, state));
  if (completed() < number) {
    sums.gate = milestone();
    sums.gate_position = sums.gate_sequence = number;
    sums.gate_engine = this;
  }
  return makes.submit(sums, wait, state, later ? Begins::later : Begins::now);
}

Engine* Engine::ends_in(uint64_t* sequence) {
  Engine* const makes = apart_.engine();
  const uint64_t sums = makes ? apart_.sums_of(*sequence) : 0;
  if (!sums) return this;
  *sequence = sums;
  return makes;
}

Status Engine::follow_sums(Operation& op) {
  Engine& makes = *apart_.engine();
  const uint64_t last = makes.submitted();
  if (op.gate) {  // it has a gate already, so the caller waits
    fsccl_status_t state;
    return makes.wait(last, -1, &state);
  }
  op.gate = makes.milestone();
  op.gate_position = op.gate_sequence = last;
  op.gate_engine = &makes;
  return success();
}

bool Engine::waits_for_sums() const {
  const Blocked& blocked = runner_.blocked();
  return blocked.release && blocked.peer == rank() && sums_under_way();
}

uint64_t Engine::freed_by() const {
  const Blocked& blocked = runner_.blocked();
  return blocked.release ? apart_.frees(blocked.release->reached(), blocked.position) : 0;
}

bool Engine::move_on() {
  fsccl_status_t state;
  Engine* const makes = apart_.engine();
  return test(submitted(), &state).ok() && (!makes || makes->test(makes->submitted(), &state).ok());
}

}  // namespace fsccl
