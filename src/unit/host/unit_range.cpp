// The gradients of a reduction: their plan, and their part in the fingerprint. A unit with one slot
// reduces all gradients at once. A unit by parameter has a plan for all gradients and for each
// gradient from the start. A plan for another set of gradients is made when the program first asks
// for it, and kept.
#include <algorithm>

#include "base/hash.h"
#include "unit/host/host_unit.h"

namespace fsccl {

GradReduction& HostUnit::make_reduction(std::vector<size_t> params) {
  GradReduction made;
  made.slots = spec_.by_parameter ? params : std::vector<size_t>{0};
  made.params = std::move(params);
  definition_.reduce_shape.params = made.params;
  plan_reduction(made);
  made.bindings.resize(made.slots.size() + made.params.size());
  made.own.resize(made.bindings.size());
  return reductions_.emplace_back(std::move(made));  // whole, or not at all if there is no memory
}

GradReduction& HostUnit::wanted_reduction() {
  if (wanted_.size() == 1 && spec_.by_parameter) return *alone_[wanted_[0]];
  const auto found = std::find_if(reductions_.begin(), reductions_.end(),
                                  [&](const GradReduction& one) { return one.params == wanted_; });
  return found != reductions_.end() ? *found : make_reduction(wanted_);
}

void HostUnit::bind_slot(const SlotSet& slots, size_t k, Binding* binding) const {
  binding->base = slots.base(k);
  binding->table = slots.part() == PartKind::own ? regions_.data() : nullptr;
  binding->table_offset = slots.offset(k);
}

void HostUnit::bind_grads(GradReduction& reduction) const {
  for (size_t k = 0; k < reduction.slots.size(); k++)
    bind_slot(grads_, reduction.slots[k], &reduction.bindings[k]);
  for (size_t k = 0; k < reduction.params.size(); k++)
    reduction.output(k).base = sharded_grads_.places[reduction.params[k]];
}

// Adds the range of gradients to the fingerprint that peers compare: the first gradient, their
// number, and a hash of all, because gradients in between may be left out.
void HostUnit::add_range(Fingerprint* fingerprint) const {
  fingerprint->root = wanted_.empty() ? 0 : static_cast<int32_t>(wanted_.front());
  fingerprint->count = wanted_.empty() ? 0 : wanted_.back() - wanted_.front() + 1;
  for (const size_t i : wanted_) fingerprint->history = mix_hash(fingerprint->history, i);
}

}  // namespace fsccl
