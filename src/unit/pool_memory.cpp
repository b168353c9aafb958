#include "unit/pool_memory.h"

#include <algorithm>

#include "base/log.h"
#include "base/round_up.h"

namespace fsccl {
namespace {

constexpr uint64_t kGrowth = 2u << 20;  // parts grow by whole huge pages
constexpr const char* kPartNames[] = {"shared slots", "slots", "blocks"};

}  // namespace

uint64_t PoolMemory::room(Part part) const {
  const uint64_t other = extent(part == Part::shared ? Part::own : Part::shared);
  return std::min((limits_.slots - std::min(other, limits_.slots)) / kGrowth * kGrowth, part_bytes_);
}

Status PoolMemory::refuse_slot(uint64_t bytes) const {
  return fail(
      FSCCL_ERR_OUT_OF_MEMORY,
      "pool '{}' of rank {} has no room for a slot of {} bytes within {} limit of {}: raise FSCCL_POOL_LIMIT or limit_bytes, or "
      "reshard more units. It holds: {}",
      name_, rank_, bytes, whose_slots(), limits_.slots, holders());
}

Status PoolMemory::grow_on(Part part, int host, uint64_t extent, bool* alone) {
  std::unique_lock lock(mutex_);
  for (bool asked = false;; asked = true) {
    const uint64_t exists = this->extent(part);
    if (extent <= exists) return success();
    const uint64_t wanted = std::min(round_up(extent, kGrowth), part_bytes_), more = wanted - exists;
    const uint64_t soft = limits_.soft && !asked ? std::min(limits_.soft, limits_.all) : limits_.all;
    const uint64_t over = held() + more > soft ? held() + more - soft : 0;
    Status status = success();
    if (!over) {
      if (!dry_run_) status = arena_.reserve(host, part_begin(part) + exists, more, prefault_);
      if (status.ok()) {
        extents_[static_cast<size_t>(part)].store(wanted, std::memory_order_release);
        growths_++;
        FSCCL_LOG(kInfo, "pool '{}' grows by {} bytes of {} to {}", name_, more, kPartNames[static_cast<size_t>(part)], wanted);
        return status;
      }
    }
    const uint64_t held_now = held();
    lock.unlock();
    if (asked) {
      *alone = true;
      if (!over) return status;
      return fail(
          FSCCL_ERR_OUT_OF_MEMORY,
          "pool '{}' of rank {} holds {} bytes and needs {} more, beyond its limit of {}: raise FSCCL_POOL_LIMIT or limit_bytes "
          "to at least {}, free blocks, or reshard more units. It holds: {}",
          name_, rank_, held_now, more, limits_.all, held_now + more, holders());
    }
    if (relief_.trim) relief_.trim();
    if (relief_.ask) relief_.ask(over ? over : more);
    if (relief_.trim) relief_.trim();
    lock.lock();
  }
}

Status PoolMemory::check_slots(uint64_t shared, uint64_t own, const char* what) const {
  const uint64_t needed = round_up(shared, kGrowth) + round_up(own, kGrowth);
  if (needed <= limits_.slots) return success();
  return fail(FSCCL_ERR_OUT_OF_MEMORY,
              "pool '{}': {} needs {} bytes for slots ({} shared, {} of each rank's own), beyond {} limit of {}: raise "
              "FSCCL_POOL_LIMIT or limit_bytes to that, or let less be unsharded at once",
              name_, what, needed, shared, own, whose_slots(), limits_.slots);
}

uint64_t PoolMemory::shrink(Part part, int host, uint64_t extent) {
  const std::lock_guard lock(mutex_);
  const uint64_t exists = this->extent(part);
  const uint64_t kept = std::min(round_up(extent, kGrowth), exists), released = exists - kept;
  if (released && !dry_run_) arena_.release(host, part_begin(part) + kept, released);
  extents_[static_cast<size_t>(part)].store(kept, std::memory_order_release);
  return released;
}

}  // namespace fsccl
