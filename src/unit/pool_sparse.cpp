// Slots of a step that nobody knew (backed_bytes.h): their bytes exist where they lie, and as many free ones go, so that a pool has
// little more than is live. Bytes that were given back may still be read or written, here and on other ranks: who gives their
// memory back to the system waits until every rank has released them. That is an event of the history, alike on all ranks, and
// whoever takes a slot there later waits until every rank has passed it, so that no rank cuts away what another one has written
// since.
//
// Once the step is known, at the second step boundary, the plan's bytes exist again as a whole: no slot asks the system any more.
#include "base/limits.h"
#include "cuda/device.h"
#include "unit/pool.h"

namespace fsccl {

// Not where somebody may have the pages themselves, instead of the addresses: a source, a network card, a driver of GPUs.
bool Pool::may_be_sparse(Communicator& comm, const PoolSource& source) {
  return !source.stack() && !comm.context().network_keeps_pages() && page_bytes() <= CollectiveRegion::kAlignment &&
         !cuda::devices_may_be_there();
}

Status Pool::back(Part part, int host_rank, uint64_t begin, uint64_t end, bool* alone) {
  const BackedBytes& backed = memory_->backed(part);
  if (end <= backed.whole()) [[likely]]
    return success();
  return carry_out(part, host_rank, backed.place(begin, end, region(part)), alone);
}

Status Pool::carry_out(Part part, int host_rank, const BackedBytes::Change& change, bool* alone) {
  if (part == Part::shared) shared_host_ = host_rank;
  if (!change.given_back.empty()) {
    Status released = wait_released(change.released);
    *alone = !released.ok();
    FSCCL_TRY(std::move(released));
    const uint64_t position = ledger_.next();
    for (const auto& [begin, end] : change.given_back) {
      memory_->give_back(part, host_rank, begin, end);
      region(part).give_up(begin, end, position);
    }
    ledger_.done(position);
  }
  Status made = change.made.empty() ? success() : memory_->make(part, host_rank, change.made, alone);
  look_if_ready();
  FSCCL_TRY(std::move(made));
  set_room();
  return success();
}

// Since then, and by nobody used.
void Pool::give_back_made(Part part, const BackedBytes& before) {
  const int host_rank = part == Part::shared ? shared_host_.load() : rank();
  for (const auto& [begin, end] : memory_->backed(part).more_than(before)) memory_->give_back(part, host_rank, begin, end);
}

Status Pool::mend(Part part) {
  std::optional<uint64_t>& since = surplus_since_[static_cast<size_t>(part)];
  const BackedBytes& backed = memory_->backed(part);
  if (!backed.torn(region(part))) {
    since.reset();
    return success();
  }
  if (!since) {
    since = ledger_.opened();
    return success();
  }
  BackedBytes::Change change = backed.mend(region(part));
  change.released = *since;
  since.reset();
  bool alone = false;
  Status status = carry_out(part, part == Part::shared ? shared_host_.load() : rank(), change, &alone);
  if (alone) comm_.engine().fail_all(status.error());  // the others have theirs
  return status;
}

}  // namespace fsccl
