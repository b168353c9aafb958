#include "unit/host/slot_set.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace fsccl {

SlotSet::SlotSet(HostPool& pool, Engine& engine, PartKind part, int owner_rank, uint64_t unit_key,
                 Role role, std::vector<uint64_t> bytes)
    : pool_(&pool),
      engine_(&engine),
      part_(part),
      owner_rank_(owner_rank),
      unit_key_(unit_key),
      role_(role),
      bytes_(std::move(bytes)),
      offset_(bytes_.size()),
      names_(bytes_.size()),
      held_(bytes_.size()) {}

uint64_t SlotSet::total_bytes() const {
  return std::accumulate(bytes_.begin(), bytes_.end(), uint64_t{0});
}

Result<uint64_t> SlotSet::take(size_t k, const HostPool::Requester& requester) {
  uint64_t release_position = 0;
  if (bytes_[k]) {
    FSCCL_ASSIGN(const HostPool::Slot slot,
                 pool_->take(part_, owner_rank_, name(k), bytes_[k], stable(), requester));
    offset_[k] = slot.offset;
    release_position = slot.release_position;
  }
  held_[k] = true;
  held_count_++;
  return release_position;
}

Result<uint64_t> SlotSet::take_all(const HostPool::Requester& requester) {
  uint64_t release_position = 0;
  for (size_t k = 0; k < size(); k++) {
    Result<uint64_t> taken = take(k, requester);
    if (!taken.ok()) {
      abandon();
      return taken;
    }
    release_position = std::max(release_position, taken.value());
  }
  return release_position;
}

Status SlotSet::give_back(size_t k, uint64_t position) {
  held_[k] = false;
  held_count_--;
  return bytes_[k] ? pool_->give_back(part_, name(k), position, *engine_) : success();
}

Status SlotSet::give_back_all(uint64_t position) {
  for (size_t k = 0; k < size() && any_held(); k++)
    if (held_[k]) FSCCL_TRY(give_back(k, position));
  return success();
}

Status SlotSet::intact(size_t k) const {
  SlotWatch* const watch = pool_->watch();
  return watch && held_[k] && bytes_[k] ? watch->intact(part_, key(k)) : success();
}

void SlotSet::withdrawn() {
  held_[0] = false;
  held_count_ = 0;
}

void SlotSet::abandon() {
  if (!any_held()) return;
  const uint64_t position = pool_->open_position();
  (void)give_back_all(position).ok();
  pool_->done_last();
}

}  // namespace fsccl
