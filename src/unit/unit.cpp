#include "unit/unit.h"

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
  FSCCL_TRY(enter(stream));
  return gather(writable, wait, state, submitted);
}

Status Unit::reshard(void* stream) {
  if (!unsharded_) return fail(FSCCL_ERR_INVALID_STATE, "unit '{}' is not unsharded", spec_.name);
  FSCCL_TRY(enter(stream));
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
  FSCCL_TRY(enter(stream));
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

Status Unit::reduce_grads(const ReduceRequest& request, void* stream, bool wait,
                          fsccl_status_t* state, Submitted* submitted) {
  FSCCL_TRY(enter(stream));
  return sum_grads(request, wait, state, submitted);
}

Status Unit::broadcast_state(int root, void* stream, bool wait, fsccl_status_t* state,
                             Submitted* submitted) {
  FSCCL_TRY(check_has_replicas(spec_, "bring into step"));
  FSCCL_TRY(check_replica_root(spec_, root));
  FSCCL_TRY(enter(stream));
  return broadcast_shards(root, wait, state, submitted);
}

Status Unit::verify_replicas() {
  FSCCL_TRY(check_has_replicas(spec_, "compare"));
  FSCCL_ASSIGN(const std::vector<uint64_t> hashes, hash_shards());
  return compare_replicas(spec_, hashes);
}

}  // namespace fsccl
