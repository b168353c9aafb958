#include "pool/host/pool_memory.h"

#include <algorithm>

#include "base/log.h"
#include "base/round_up.h"

namespace fsccl {
namespace {

constexpr uint64_t kGrowthAlignment = 4096;
constexpr const char* kPartNames[] = {"shared slots", "slots", "blocks"};

}  // namespace

Status PoolMemory::refuse_slot(uint64_t bytes) const {
  return fail(FSCCL_ERR_OUT_OF_MEMORY,
              "pool '{}' of rank {} has no room for a slot of {} bytes within {} limit of {}: "
              "raise FSCCL_POOL_LIMIT or limit_bytes, or "
              "reshard more units. It holds: {}",
              name_, rank_, bytes, whose_slots(), limits_.slots, holders());
}

Status PoolMemory::grow(PartKind part, int owner, uint64_t extent, uint64_t* lacking) {
  return grow_to(part, owner, [extent] { return extent; }, lacking);
}

Status PoolMemory::grow_blocks(uint64_t extent) {
  if (extent <= this->extent(PartKind::local)) return success();
  const auto wanted = [&] { return rounded(extent, limits_.all - std::min(slots(), limits_.all)); };
  uint64_t lacking = 0;
  return grow_to(PartKind::local, rank_, wanted, &lacking);
}

Status PoolMemory::grow_to(PartKind part, int owner, const std::function<uint64_t()>& wanted,
                           uint64_t* lacking) {
  const auto more = [&] {
    const uint64_t extent = wanted(), exists = this->extent(part);
    return extent - std::min(extent, exists);
  };
  const auto take = [&](uint64_t bytes, Lock& lock) {
    if (!source_ || owner != rank_ || dry_run_) return extend(part, owner, bytes);
    lock.unlock();
    Status status = extend_by_source(part, bytes);
    lock.lock();
    return status;
  };
  return ask({more, take}, lacking);
}

Status PoolMemory::make(PartKind part, int owner, const BackedBytes::Ranges& ranges,
                        uint64_t* lacking) {
  uint64_t wanted = 0;
  for (const auto& [begin, end] : ranges) wanted += end - begin;
  const auto take = [&](uint64_t, Lock&) {
    FSCCL_TRY(make_ranges(part, owner, ranges));
    wanted = 0;
    return success();
  };
  return ask({[&] { return wanted; }, take}, lacking);
}

// Takes the bytes of a demand. At a limit, or if the system has no memory, it asks for relief and
// tries once more.
Status PoolMemory::ask(const Demand& demand, uint64_t* lacking) {
  Lock lock(mutex_);
  for (bool asked = false;; asked = true) {
    const uint64_t more = demand.more();
    if (!more) return success();
    const uint64_t soft =
        limits_.soft && !asked ? std::min(limits_.soft, limits_.all) : limits_.all;
    const uint64_t over = held() + more > soft ? held() + more - soft : 0;
    Status status = over ? success() : demand.take(more, lock);
    if (!over && status.ok()) return status;
    const uint64_t held_now = held();
    lock.unlock();
    if (asked) {
      *lacking = over ? over : more;
      if (!over) return status;
      return fail(FSCCL_ERR_OUT_OF_MEMORY,
                  "pool '{}' of rank {} holds {} bytes and needs {} more, beyond its limit of {}: "
                  "raise FSCCL_POOL_LIMIT or limit_bytes "
                  "to at least {}, free blocks, or reshard more units. It holds: {}",
                  name_, rank_, held_now, more, limits_.all, held_now + more, holders());
    }
    if (relief_.trim) relief_.trim();
    if (relief_.ask) relief_.ask(over ? over : more);
    if (relief_.trim) relief_.trim();
    lock.lock();
  }
}

Status PoolMemory::make_ranges(PartKind part, int owner, const BackedBytes::Ranges& ranges) {
  for (size_t i = 0; i < ranges.size() && !dry_run_; i++) {
    const auto& [begin, end] = ranges[i];
    Status status = arena_.reserve(owner, part_begin(part) + begin, end - begin, prefault_);
    if (status.ok()) continue;
    for (i++; i-- > 0;)
      arena_.release(owner, part_begin(part) + ranges[i].first, ranges[i].second - ranges[i].first);
    return status;
  }
  BackedBytes& backed = backed_[static_cast<size_t>(part)];
  const uint64_t address = reinterpret_cast<uint64_t>(arena_.region(owner) + part_begin(part));
  for (const auto& [begin, end] : ranges) {
    backed.made(begin, end);
    if (journal_)
      journal_->changed(static_cast<size_t>(part), address, backed.reach(), JournalAction::kGrown,
                        begin, end - begin);
  }
  // This store pairs with the load in extent().
  extents_[static_cast<size_t>(part)].store(backed.bytes(), std::memory_order_release);
  growths_++;
  FSCCL_LOG(kInfo, "pool '{}' grows to {} bytes of {}", name_, backed.bytes(),
            kPartNames[static_cast<size_t>(part)]);
  return success();
}

void PoolMemory::give_back(PartKind part, int owner, uint64_t begin, uint64_t end) {
  const std::lock_guard lock(mutex_);
  if (!dry_run_) arena_.release(owner, part_begin(part) + begin, end - begin);
  BackedBytes& backed = backed_[static_cast<size_t>(part)];
  backed.given_back(begin, end);
  given_back_[static_cast<size_t>(part)] += end - begin;
  // This store pairs with the load in extent().
  extents_[static_cast<size_t>(part)].store(backed.bytes(), std::memory_order_release);
  const uint64_t address = reinterpret_cast<uint64_t>(arena_.region(owner) + part_begin(part));
  if (journal_)
    journal_->changed(static_cast<size_t>(part), address, backed.reach(), JournalAction::kReleased,
                      begin, end - begin);
}

Status PoolMemory::extend(PartKind part, int owner, uint64_t more) {
  const uint64_t exists = extent(part);
  if (!dry_run_) FSCCL_TRY(arena_.reserve(owner, part_begin(part) + exists, more, prefault_));
  // This store pairs with the load in extent().
  extents_[static_cast<size_t>(part)].store(exists + more, std::memory_order_release);
  growths_++;
  if (journal_)
    journal_->grown(static_cast<size_t>(part),
                    reinterpret_cast<uint64_t>(arena_.region(owner) + part_begin(part)), more);
  FSCCL_LOG(kInfo, "pool '{}' grows by {} bytes of {} to {}", name_, more,
            kPartNames[static_cast<size_t>(part)], exists + more);
  return success();
}

Status PoolMemory::extend_by_source(PartKind part, uint64_t more) {
  Growth growth(*this, part);
  const Result<void*> result =
      source_->allocate({.bytes = more, .alignment = kGrowthAlignment, .growth = &growth});
  if (result.ok()) return success();
  return fail(result.status().code(), "pool '{}' of rank {} asked its source for {} bytes more: {}",
              name_, rank_, more, result.status().text());
}

// Reserves bytes. If other threads took memory meanwhile, the request is made again.
Result<void*> PoolMemory::Growth::reserve(uint64_t bytes) {
  const std::lock_guard lock(memory.mutex_);
  const uint64_t exists = memory.extent(part);
  if (memory.held() + bytes > memory.limits_.all || bytes > memory.part_bytes_ - exists)
    return fail(FSCCL_ERR_OUT_OF_MEMORY,
                "pool '{}' of rank {} has grown meanwhile, and has no room for {} bytes more",
                memory.name_, memory.rank_, bytes);
  FSCCL_TRY(memory.extend(part, memory.rank_, bytes));
  memory.from_source_[static_cast<size_t>(part)] += bytes;
  return static_cast<void*>(memory.arena_.region(memory.rank_) + memory.part_begin(part) + exists);
}

void PoolMemory::give_to_source(PartKind part, uint64_t from, uint64_t bytes) {
  Growth growth(*this, part);
  const Status status =
      source_->deallocate(arena_.region(rank_) + part_begin(part) + from,
                          {.bytes = bytes, .alignment = kGrowthAlignment, .growth = &growth});
  if (!status.ok())
    FSCCL_LOG(kWarn, "pool '{}': its source does not take {} bytes back: {}", name_, bytes,
              status.text());
}

PoolMemory::~PoolMemory() {
  for (const PartKind part : {PartKind::shared, PartKind::own, PartKind::local})
    if (const uint64_t bytes = from_source_[static_cast<size_t>(part)])
      give_to_source(part, 0, bytes);
}

Status PoolMemory::check_slots(uint64_t shared, uint64_t own, const char* what) const {
  const uint64_t needed = shared + own;
  if (needed <= most_slots()) return success();
  return fail(FSCCL_ERR_OUT_OF_MEMORY,
              "pool '{}': {} needs {} bytes for slots ({} shared, {} of each rank's own), beyond "
              "{} limit of {}: raise "
              "FSCCL_POOL_LIMIT or limit_bytes to that, or let less be unsharded at once",
              name_, what, needed, shared, own, whose_slots(), limits_.slots);
}

bool PoolMemory::exceeds(PartKind part, uint64_t extent) const {
  return this->extent(part) > std::min(round_up(extent, kGrowth), part_bytes_);
}

uint64_t PoolMemory::cut(PartKind part, int owner, uint64_t kept) {
  std::unique_lock lock(mutex_);
  const uint64_t exists = this->extent(part);
  kept = std::min(kept, exists);
  const uint64_t released = exists - kept;
  if (released && !dry_run_) arena_.release(owner, part_begin(part) + kept, released);
  // This store pairs with the load in extent().
  extents_[static_cast<size_t>(part)].store(kept, std::memory_order_release);
  given_back_[static_cast<size_t>(part)] += released;
  uint64_t& given = from_source_[static_cast<size_t>(part)];
  const bool of_source = released && given;
  if (of_source) given -= released;
  if (released && journal_) journal_->released(static_cast<size_t>(part), released);
  lock.unlock();
  if (of_source) give_to_source(part, kept, released);
  return released;
}

}  // namespace fsccl
