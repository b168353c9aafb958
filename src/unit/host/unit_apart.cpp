// Sums of a unit's gradients that are made apart (engine/sums_apart.h), if they take long enough to
// be worth two operations. A reduction over several hosts has several operations already.
#include "base/config.h"
#include "unit/host/host_unit.h"

namespace fsccl {

Status HostUnit::make_sums_apart() {
  if (span_ || comm().size() == 1 || engine().mirrored() ||
      reductions_.front().planned.bytes_read < static_cast<uint64_t>(config()->sums_apart_bytes))
    return success();
  FSCCL_ASSIGN(apart_, comm().sums());
  return success();
}

Status HostUnit::submit_sums(Operation& op, Operation* enters, const GradReduction& reduction,
                             bool wait, fsccl_status_t* state, Submitted* submitted) {
  if (!enters) {
    *submitted = {&engine(), reduce_sequence_};
    return engine().submit(op, wait, state);
  }
  enters->plan = &reduction.enters;
  enters->bindings = reduction.bindings.data();
  *submitted = {&engine(), enters->fingerprint.sequence};
  const uint64_t position =
      reduction.slots.empty() ? 0 : reduced_[reduction.slots.front()].position;
  return engine().submit_apart(*enters, op, position, wait, comm().sums_later(), state);
}

}  // namespace fsccl
