// Which gradients a reduction is of: the plan for them, what is wrong with asking for them, and
// what peers are told of them. A unit with one slot reduces all at once. By parameter there is a
// plan for each gradient and for all from the start; one for other parameters is made when they are
// first asked for together, and kept.
#include <algorithm>

#include "base/hash.h"
#include "unit/host/host_unit.h"

namespace fsccl {

GradReduction& HostUnit::make_reduction(std::vector<size_t> params) {
  GradReduction& made = reductions_.emplace_back();
  made.slots = spec_.by_parameter ? params : std::vector<size_t>{0};
  made.params = std::move(params);
  definition_.reduce_shape.params = made.params;
  plan_reduction(made);
  made.bindings.resize(made.slots.size() + made.params.size());
  made.own.resize(made.bindings.size());
  return made;
}

GradReduction& HostUnit::wanted_reduction() {
  if (wanted_.size() == 1 && spec_.by_parameter) return *alone_[wanted_[0]];
  const auto found = std::find_if(reductions_.begin(), reductions_.end(),
                                  [&](const GradReduction& one) { return one.params == wanted_; });
  return found != reductions_.end() ? *found : make_reduction(wanted_);
}

Status HostUnit::want(const ReduceRequest& request) {
  const bool range = request.first || request.count;
  if (range && !spec_.by_parameter)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "unit '{}' has one slot for all gradients: reduce all of them (first = count = 0), "
                "or make it with by_parameter = 1",
                spec_.name);
  if (range &&
      (request.count == 0 || request.first >= count() || request.count > count() - request.first))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "unit '{}' has {} parameters, not {} from {} on",
                spec_.name, count(), request.count, request.first);
  wanted_.clear();
  const size_t end = range ? request.first + request.count : count();
  const bool only_held = spec_.by_parameter && !range && !request.grads;
  for (size_t i = request.first; i < end; i++)
    if (has_grad(i) && (range || !layout().tied(i)) && (!only_held || grads_.held(i)))
      wanted_.push_back(layout().owner(i));
  std::sort(wanted_.begin(), wanted_.end());
  wanted_.erase(std::unique(wanted_.begin(), wanted_.end()), wanted_.end());
  return success();
}

Status HostUnit::check_grads(const ReduceRequest& request) const {
  for (const size_t i : wanted_) {
    const bool held = grads_.held(definition_.grad_map.slot_of(i));
    if (request.grads && held)
      return fail(FSCCL_ERR_INVALID_STATE,
                  "unit '{}' has gradients in its slot (grad() was called): pass grads = NULL, or "
                  "do not call grad()",
                  spec_.name);
    if (request.grads && layout().numel(i) && !request.grads[i])
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "grads[{}] (parameter '{}' of unit '{}') is NULL", i,
                  spec_.params[i].name, spec_.name);
    if (!request.grads && !held && layout().numel(i))
      return fail(FSCCL_ERR_INVALID_STATE,
                  "unit '{}' has no gradients to reduce{}: write them to grad() first, or pass "
                  "them in grads",
                  spec_.name,
                  spec_.by_parameter
                      ? fmt::format(" of parameter {} ('{}')", i, spec_.params[i].name)
                      : "");
  }
  if (!request.grads && wanted_.empty() && definition_.grad_map.bytes)
    return fail(
        FSCCL_ERR_INVALID_STATE,
        "unit '{}' has no gradients to reduce: write them to grad() first, or pass them in grads",
        spec_.name);
  return success();
}

void HostUnit::bind_slot(const SlotSet& slots, size_t k, Binding* binding) const {
  binding->base = slots.base(k);
  binding->table = slots.part() == Part::own ? regions_.data() : nullptr;
  binding->table_offset = slots.offset(k);
}

void HostUnit::bind_grads(GradReduction& reduction) const {
  for (size_t k = 0; k < reduction.slots.size(); k++)
    bind_slot(grads_, reduction.slots[k], &reduction.bindings[k]);
  for (size_t k = 0; k < reduction.params.size(); k++)
    reduction.output(k).base = sharded_grads_.places[reduction.params[k]];
}

// For peers: first and number, and all of them where some are left out between.
void HostUnit::add_range(Fingerprint* fingerprint) const {
  fingerprint->root = wanted_.empty() ? 0 : static_cast<int32_t>(wanted_.front());
  fingerprint->count = wanted_.empty() ? 0 : wanted_.back() - wanted_.front() + 1;
  for (const size_t i : wanted_) fingerprint->history = mix_hash(fingerprint->history, i);
}

}  // namespace fsccl
