// This file takes slots and gives them back where no table of a planned step says what happens.
#include "base/round_up.h"
#include "pool/host/history_change.h"
#include "pool/host/host_pool.h"

namespace fsccl {

// Gives back the slot that has been kept idle for the longest time. All ranks choose the same slot.
bool HostPool::withdraw_kept(Engine& engine) {
  KeptSlot* oldest = nullptr;
  for (KeptSlot* slot : kept_slots)
    if (slot->idle_since && (!oldest || slot->idle_since < oldest->idle_since)) oldest = slot;
  if (!oldest) return false;
  const uint64_t position = open_position();
  const Status given_back = give_back(oldest->part, name_of(oldest->key), position, engine);
  done_last();
  if (!given_back.ok()) return false;
  oldest->idle_since = 0;
  oldest->withdrawn();
  return true;
}

Result<SlotGrant> HostPool::place(PartKind part, uint64_t key, uint64_t bytes, bool stable) {
  set_room();
  Result<SlotGrant> grant =
      region(part).take(key, std::max<uint64_t>(bytes, 1), stable, ledger_.opened());
  update_figures();
  return grant;
}

Status HostPool::await_room(Engine& engine, std::string_view unit) {
  if (ledger_.room()) [[likely]]
    return success();
  return wait_for_release(
      engine, engine.rank(), *release_line(rank()), ledger_.room_from(), comm_.deadline(),
      fmt::format("fsccl_unit_release() of unit '{}', whose earlier reductions still run,", unit));
}

Result<HostPool::Slot> HostPool::take_unplanned(PartKind part, int owner_rank, const SlotName& name,
                                                uint64_t bytes, bool stable,
                                                const Requester& requester) {
  return change_history(requester.comm.engine(), [&] {
    return take_anew(part, owner_rank, name, bytes, stable, requester);
  });
}

Result<HostPool::Slot> HostPool::take_anew(PartKind part, int owner_rank, const SlotName& name,
                                           uint64_t bytes, bool stable,
                                           const Requester& requester) {
  if (!ledger_.room())
    return fail(FSCCL_ERR_INVALID_STATE,
                "more than {} units given back while operations on them run: wait for some",
                ReleaseLedger::kMostOpen);
  const uint64_t zone = watch_ ? SlotWatch::kZone : 0,
                 asked = std::exchange(bytes, bytes + 2 * zone);
  if (part == PartKind::shared && shared_owner_ >= 0 && shared_owner_ != owner_rank)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "pool '{}' already hosts shared slots of another group of ranks: make a pool for "
                "each shard communicator",
                name_);
  if (mend_due_) FSCCL_TRY(mend(requester));
  // Growth needs the owner. A slot that is refused leaves the owner that the pool had before.
  const int owner_before = shared_owner_;
  if (part == PartKind::shared) shared_owner_ = owner_rank;
  Result<Slot> taken = take_within_limit(part, name.key, bytes, stable, requester);
  // If there is no room, slots that are kept idle are given back, the same on all ranks.
  while (!taken.ok() && taken.status().code() == FSCCL_ERR_OUT_OF_MEMORY &&
         withdraw_kept(requester.comm.engine()))
    taken = take_within_limit(part, name.key, bytes, stable, requester);
  if (!taken.ok()) {
    shared_owner_ = owner_before;
    if (taken.status().code() == FSCCL_ERR_OUT_OF_MEMORY)
      journal_->slot_refused(name.key, asked, memory_->left());
    return taken;
  }
  Slot slot = taken.value();
  const uint64_t room = round_up(std::max<uint64_t>(bytes, 1), CollectiveRegion::kAlignment);
  journal_->slot_taken(*name.of, static_cast<size_t>(part), location(part, owner_rank, slot.offset),
                       room, asked);
  slot.offset += zone;
  if (watch_) [[unlikely]]
    watch_->taken(part, name.key, address(part, owner_rank, slot.offset), asked, room - zone);
  return slot;
}

// Returns a slot that has a place, and memory there on all ranks. Otherwise all ranks get an error,
// and nothing has changed.
Result<HostPool::Slot> HostPool::take_within_limit(PartKind part, uint64_t key, uint64_t bytes,
                                                   bool stable, const Requester& requester) {
  Result<SlotGrant> grant = place(part, key, bytes, stable);
  if (!grant.ok())
    return grant.status().code() == FSCCL_ERR_OUT_OF_MEMORY ? memory_->refuse_slot(bytes)
                                                            : grant.take_status();
  Slot slot{grant.value().offset, grant.value().release_position};
  const uint64_t room = round_up(std::max<uint64_t>(bytes, 1), CollectiveRegion::kAlignment);
  Status grown = memory_->sparse() ? back(part, &slot, room, requester) : grow(part, requester);
  if (grown.ok()) return slot;
  const uint64_t undo = ledger_.next();
  (void)region(part).give_back(key, undo);
  ledger_.done(undo);
  set_room();
  update_figures();
  return grown;
}

Status HostPool::give_back_unplanned(PartKind part, const SlotName& name, uint64_t position,
                                     Engine& engine) {
  return change_history(engine, [&]() -> Status {
    if (watch_) watch_->given_back(part, name.key);
    FSCCL_TRY(region(part).give_back(name.key, position));
    update_figures();
    journal_->slot_given_back(*name.of, static_cast<size_t>(part));
    return success();
  });
}

}  // namespace fsccl
