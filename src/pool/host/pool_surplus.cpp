// Gives back memory that the plan of slots no longer needs. The slots of a recorded step are placed
// in the order of the calls, which takes more memory than its plan, and a new plan may be smaller
// than the one before. When the extent of a part has fallen at a step boundary, no rank holds a
// slot above it, but operations on these bytes may still run, on this rank and on others. The bytes
// therefore go back at the next step boundary with a surplus, a whole step later. By then nearly
// every rank has released them, and this rank waits for the others. All ranks do this at the same
// place in their histories. The return of memory is an event of the history, and a rank that takes
// a slot in that range waits for it, so no rank returns bytes that another rank has written since.
#include "base/log.h"
#include "pool/host/host_pool.h"

namespace fsccl {

Status HostPool::wait_released(uint64_t position) {
  const Deadline deadline = comm_.deadline();
  for (const int rank : sharers_)
    if (release_line(rank)->reached() < position)
      FSCCL_TRY(wait_for_release(
          comm_.engine(), rank, *release_line(rank), position, deadline,
          fmt::format("pool '{}', which gives memory of the step before back,", name_)));
  return success();
}

Status HostPool::give_back_surplus(PartKind part) {
  std::optional<uint64_t>& since = surplus_since_[static_cast<size_t>(part)];
  const uint64_t extent = region(part).extent();
  if (!memory_->exceeds(part, extent)) {
    since.reset();
    return success();
  }
  if (!since) {
    since = ledger_.opened();
    return success();
  }
  FSCCL_TRY(wait_released(*since));
  since.reset();
  const uint64_t position = ledger_.next();
  const uint64_t released =
      memory_->shrink(part, part == PartKind::shared ? shared_owner_.load() : rank(), extent);
  region(part).give_up(memory_->extent(part), position);
  ledger_.done(position);
  set_room();
  FSCCL_LOG(kInfo, "pool '{}' gives {} bytes back that its plan does not need", name_, released);
  return success();
}

}  // namespace fsccl
