// A step that the program declares before it runs. Both kinds of slots are planned from it, within
// the limit that all ranks have in common. Then all ranks make the memory of the plans, or none
// does.
#include <algorithm>

#include "pool/host/host_pool.h"

namespace fsccl {
namespace {

std::vector<CollectiveRegion::Event> with_zones(std::vector<CollectiveRegion::Event> events) {
  for (CollectiveRegion::Event& event : events)
    if (event.takes()) event.bytes += 2 * SlotWatch::kZone;
  return events;
}

}  // namespace

// Makes the memory of the plans of a declared step, and sets *change to the memory that this makes
// and gives back. All ranks get an error if there is too little memory.
Status HostPool::make_plans_memory(MemoryChange* change) {
  if (memory_->sparse()) {
    FSCCL_TRY(plan_mending(change));
  } else {
    for (const PartKind part : {PartKind::shared, PartKind::own}) add_growth(part, change);
  }
  uint64_t lacking = 0;
  return carry_out(*change, {whole_ ? *whole_ : comm_, {.op = OpCode::pool_schedule}}, &lacking);
}

// Plans the declared steps. With `within_limit` earlier steps are forgotten until the rest fits.
Status HostPool::plan_declared(const std::vector<CollectiveRegion::Event>& shared,
                               const std::vector<CollectiveRegion::Event>& own, bool within_limit) {
  const auto extent = [this](PartKind part) {
    return memory_->sparse() ? region(part).whole_extent() : region(part).extent();
  };
  const auto declare = [&](PartKind part, const std::vector<CollectiveRegion::Event>& events,
                           uint64_t other) {
    const uint64_t room = within_limit ? memory_->slot_room(other) : part_bytes_;
    set_capacity(part, room, room);
    return region(part).declare(events);
  };
  FSCCL_TRY(declare(PartKind::shared, shared, 0));
  FSCCL_TRY(declare(PartKind::own, own, extent(PartKind::shared)));
  return memory_->check_slots(extent(PartKind::shared), extent(PartKind::own), "the schedule");
}

Status HostPool::declare(const std::vector<CollectiveRegion::Event>& shared,
                         const std::vector<CollectiveRegion::Event>& own, int owner_rank) {
  const CollectiveRegion shared_before = *shared_, own_before = *own_;
  const auto undo = [&] {
    *shared_ = shared_before;
    *own_ = own_before;
  };
  const auto& shared_slots = watch_ ? with_zones(shared) : shared;
  const auto& own_slots = watch_ ? with_zones(own) : own;
  Status status = plan_declared(shared_slots, own_slots, false);
  if (!status.ok() && status.code() == FSCCL_ERR_OUT_OF_MEMORY) {
    undo();
    if (plan_declared(shared_slots, own_slots, true).ok()) status = success();
  }
  const int owner_before = shared_owner_;
  if (owner_rank >= 0) shared_owner_ = owner_rank;
  MemoryChange change;
  if (status.ok()) status = make_plans_memory(&change);
  if (!status.ok()) {
    undo();
    // The regions were restored, so they must learn again which bytes were given back meanwhile.
    take_back(change.given_back, {});
    take_back(change.made, {});
    shared_owner_ = owner_before;
  }
  set_room();
  update_figures();
  return status;
}

}  // namespace fsccl
