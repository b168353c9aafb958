#include "unit/unit.h"

#include <algorithm>

#include "pool/pool.h"
#include "unit/replica_check.h"

namespace fsccl {

bool Unit::promise_kept(uint64_t slot_bytes) {
  uint64_t& kept = spec_.pool->kept_bytes;
  const bool keeps =
      spec_.keep == FSCCL_KEEP_ALWAYS ||
      (spec_.keep == FSCCL_KEEP_BUDGET && kept + slot_bytes <= spec_.keep_budget_bytes);
  if (keeps) kept += slot_bytes;
  return keeps;
}

Status Unit::check_index(size_t index) const {
  if (index < count()) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT, "unit '{}' has {} parameters; {} is not the index of one",
              spec_.name, count(), index);
}

Status Unit::codec_report(fsccl_codec_report_t*) const {
  return fail(FSCCL_ERR_INVALID_STATE,
              "unit '{}' was made without a gather_codec and without a reduce_codec", spec_.name);
}

Status Unit::was_released(size_t index) const {
  return fail(
      FSCCL_ERR_INVALID_STATE,
      "parameter {} ('{}') of unit '{}' was released: it is there again after the next unshard",
      index, spec_.params[index].name, spec_.name);
}

Status Unit::check_has_grad(size_t index) const {
  FSCCL_TRY(check_index(index));
  if (has_grad(index)) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "parameter '{}' of unit '{}' is frozen: it has no gradient", spec_.params[index].name,
              spec_.name);
}

Status Unit::unshard(bool writable, void* stream, bool wait, fsccl_status_t* state,
                     Submitted* submitted) {
  if (unsharded_)
    return fail(FSCCL_ERR_INVALID_STATE, "unit '{}' is unsharded already: reshard it first",
                spec_.name);
  FSCCL_TRY(begin_call(stream));
  return gather(writable, wait, state, submitted);
}

Status Unit::reshard(void* stream) {
  if (!unsharded_) return fail(FSCCL_ERR_INVALID_STATE, "unit '{}' is not unsharded", spec_.name);
  FSCCL_TRY(begin_call(stream));
  return give_back_params();
}

Status Unit::release(size_t index, void* stream) {
  FSCCL_TRY(check_index(index));
  if (!spec_.by_parameter)
    return fail(
        FSCCL_ERR_INVALID_STATE,
        "unit '{}' has one slot for all parameters: reshard it, or make it with by_parameter = 1",
        spec_.name);
  if (!unsharded_)
    return fail(FSCCL_ERR_INVALID_STATE, "unit '{}' is sharded: unshard it before release()",
                spec_.name);
  FSCCL_TRY(begin_call(stream));
  return give_back_param(index);
}

Status Unit::param(size_t index, fsccl_view_t* view) {
  FSCCL_TRY(check_index(index));
  if (!unsharded_)
    return fail(FSCCL_ERR_INVALID_STATE, "unit '{}' is sharded: unshard it before param()",
                spec_.name);
  FSCCL_ASSIGN(std::byte* const slot, param_slot(index));
  const uint64_t elements = layout().numel(index);
  *view = {elements ? slot + definition_.wire_map.offset[index] : nullptr, elements, 0,
           definition_.wire_dtypes[index]};
  return success();
}

Status Unit::shard(size_t index, fsccl_view_t* view) const {
  FSCCL_TRY(check_index(index));
  const Piece piece = layout().piece(comm().rank(), index);
  *view = {piece.count ? shards_.places[index] : nullptr, piece.count, piece.begin,
           spec_.params[index].dtype};
  return success();
}

Status Unit::grad(size_t index, void* stream, fsccl_view_t* view) {
  FSCCL_TRY(check_has_grad(index));
  FSCCL_ASSIGN(std::byte* const slot, grad_slot(index, stream));
  const uint64_t elements = layout().numel(index);
  *view = {elements ? slot + definition_.grad_map.offset[index] : nullptr, elements, 0,
           spec_.reduce_dtype};
  return success();
}

Status Unit::sharded_grad(size_t index, fsccl_view_t* view) {
  FSCCL_TRY(check_has_grad(index));
  FSCCL_TRY(check_reduced(index));
  const Piece piece = layout().piece(comm().rank(), index);
  *view = {piece.count ? sharded_grads_.places[layout().owner(index)] : nullptr, piece.count,
           piece.begin, spec_.grad_dtype};
  return success();
}

Status Unit::set_shards(void* const* shards) {
  if (unsharded_)
    return fail(FSCCL_ERR_INVALID_STATE,
                "unit '{}' is unsharded: reshard it before its shards move", spec_.name);
  FSCCL_TRY(move_shards(shards));
  changed_ = true;
  return success();
}

Status Unit::want(const ReduceRequest& request) {
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
    if (has_grad(i) && (range || !layout().tied(i)) && (!only_held || holds_grad(i)))
      wanted_.push_back(layout().owner(i));
  std::sort(wanted_.begin(), wanted_.end());
  wanted_.erase(std::unique(wanted_.begin(), wanted_.end()), wanted_.end());
  return success();
}

Status Unit::check_grads(const ReduceRequest& request) const {
  for (const size_t i : wanted_) {
    const bool held = holds_grad(i);
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

Status Unit::reduce_grads(const ReduceRequest& request, void* stream, bool wait,
                          fsccl_status_t* state, Submitted* submitted) {
  FSCCL_TRY(begin_call(stream));
  return sum_grads(request, wait, state, submitted);
}

Status Unit::broadcast_state(int root, void* stream, bool wait, fsccl_status_t* state,
                             Submitted* submitted) {
  FSCCL_TRY(check_has_replicas(spec_, "bring into step"));
  FSCCL_TRY(check_replica_root(spec_, root));
  FSCCL_TRY(begin_call(stream));
  return broadcast_shards(root, wait, state, submitted);
}

Status Unit::verify_replicas() {
  FSCCL_TRY(check_has_replicas(spec_, "compare"));
  FSCCL_ASSIGN(const std::vector<uint64_t> hashes, hash_shards());
  return compare_replicas(spec_, hashes);
}

}  // namespace fsccl
