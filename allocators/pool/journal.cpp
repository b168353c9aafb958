#include "allocators/pool/journal.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace fsccl {

const char* name_of(UseKind kind) {
  switch (kind) {
    case UseKind::kParameters:
      return "parameters";
    case UseKind::kGradients:
      return "gradients";
    case UseKind::kShards:
      return "shards";
    case UseKind::kBlock:
      return "block";
    case UseKind::kImport:
      return "import";
  }
  return "";
}

Result<std::unique_ptr<Journal>> Journal::open(size_t history, const std::string& log_path) {
  std::unique_ptr<Journal> journal(new Journal);
  journal->capacity_ = history;
  if (history) journal->ring_ = std::make_unique_for_overwrite<JournalEvent[]>(history);
  if (!log_path.empty()) {
    FSCCL_ASSIGN(journal->log_, AllocationLog::open(log_path));
  }
  using std::chrono::system_clock;
  const int64_t now = std::chrono::duration_cast<std::chrono::microseconds>(system_clock::now().time_since_epoch()).count();
  journal->clock_ahead_ = now - now_ns() / 1000;
  return journal;
}

int64_t Journal::time_us() const { return clock_ahead_ + now_ns() / 1000; }

uint32_t Journal::use_of(const Owner& owner) {
  const auto found = use_numbers_.find(std::tuple<UseKind, std::string_view, uint64_t>(owner.kind, owner.unit, owner.stream));
  if (found != use_numbers_.end()) return found->second;
  const auto number = static_cast<uint32_t>(uses_.size());
  uses_.push_back({.kind = owner.kind, .unit = std::string(owner.unit), .stream = owner.stream});
  use_numbers_.emplace(std::tuple(owner.kind, uses_.back().unit, owner.stream), number);
  return number;
}

void Journal::name_slot(uint64_t key, UseKind kind, const std::string& unit) {
  const std::lock_guard lock(mutex_);
  slots_[key].use = use_of({kind, unit});
}

void Journal::forget_slot(uint64_t key) {
  const std::lock_guard lock(mutex_);
  slots_.erase(key);
}

Journal::Named& Journal::named(uint64_t key) {
  const auto found = slots_.find(key);
  if (found != slots_.end()) [[likely]]
    return found->second;
  return slots_.emplace(key, Named{.use = use_of({UseKind::kParameters, {}})}).first->second;  // of nobody who said who it is
}

void Journal::slot_taken(uint64_t key, size_t part, uint64_t address, uint64_t bytes, uint64_t requested) {
  const std::lock_guard lock(mutex_);
  Named& slot = named(key);
  slot.live[part] = {address, bytes, requested, slot.use};
  take(slot.live[part]);
}

void Journal::slot_given_back(uint64_t key, size_t part) {
  const std::lock_guard lock(mutex_);
  Named& slot = named(key);
  give_back(slot.live[part], 0);
  slot.live[part].bytes = 0;
}

void Journal::slot_refused(uint64_t key, uint64_t bytes, uint64_t free) {
  const std::lock_guard lock(mutex_);
  refuse(named(key).use, bytes, free);
}

void Journal::block_taken(const Owner& owner, uint64_t address, uint64_t bytes, uint64_t requested) {
  const std::lock_guard lock(mutex_);
  const LiveMemory memory{address, bytes, requested, use_of(owner)};
  blocks_[address] = memory;
  take(memory);
}

void Journal::block_given_back(uint64_t address, uint64_t stream) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return;
  give_back(found->second, stream);
  blocks_.erase(found);
}

void Journal::block_refused(const Owner& owner, uint64_t bytes, uint64_t free) {
  const std::lock_guard lock(mutex_);
  refuse(use_of(owner), bytes, free);
}

void Journal::take(const LiveMemory& memory) {
  MemoryUse& use = uses_[memory.use];
  use.live += memory.bytes;
  use.peak = std::max(use.peak, use.live);
  use.allocations++;
  use.allocated += memory.bytes;
  live_ += memory.bytes;
  live_peak_ = std::max(live_peak_, live_);
  if (!watched()) [[likely]]
    return;
  const int64_t time = time_us();
  note(JournalAction::kTaken, memory, use.stream, time);
  if (log_) log_->allocate(time, memory.address, memory.bytes, use.stream);
}

void Journal::give_back(const LiveMemory& memory, uint64_t stream) {
  MemoryUse& use = uses_[memory.use];
  use.live -= memory.bytes;
  use.frees++;
  live_ -= memory.bytes;
  if (!watched()) [[likely]]
    return;
  const int64_t time = time_us();
  note(JournalAction::kGivenBack, memory, stream, time);
  if (log_) log_->free(time, memory.address, memory.bytes, stream);
}

void Journal::refuse(uint32_t use, uint64_t bytes, uint64_t free) {
  if (!watched()) return;
  const int64_t time = time_us();
  note(JournalAction::kRefused, {0, bytes, free, use}, uses_[use].stream, time);
  if (log_) log_->failure(time, bytes, uses_[use].stream);
}

void Journal::grown(size_t part, uint64_t part_address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  parts_[part].address = part_address;
  note(JournalAction::kGrown, {part_address + parts_[part].bytes, bytes, bytes, static_cast<uint32_t>(part)}, 0, time_us());
  parts_[part].bytes += bytes;
}

void Journal::released(size_t part, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  parts_[part].bytes -= bytes;
  note(JournalAction::kReleased, {parts_[part].address + parts_[part].bytes, bytes, bytes, static_cast<uint32_t>(part)}, 0,
       time_us());
}

void Journal::step() {
  if (!watched()) return;
  const std::lock_guard lock(mutex_);
  note(JournalAction::kStep, {}, 0, time_us());
  if (log_) log_->flush();
}

void Journal::note(JournalAction action, const LiveMemory& memory, uint64_t stream, int64_t time_us) {
  if (!capacity_) return;
  ring_[events_++ % capacity_] = {time_us, memory.address, memory.bytes, memory.requested, stream, memory.use, action};
}

uint64_t Journal::live_peak() const {
  const std::lock_guard lock(mutex_);
  return live_peak_;
}

std::vector<MemoryUse> Journal::uses() const {
  const std::lock_guard lock(mutex_);
  return uses_;
}

JournalCopy Journal::copy() const {
  JournalCopy copy;
  {
    const std::lock_guard lock(mutex_);
    copy.uses = uses_;
    copy.parts = parts_;
    for (const auto& [key, slot] : slots_)
      for (const LiveMemory& memory : slot.live)
        if (memory.bytes) copy.live.push_back(memory);
    for (const auto& [address, memory] : blocks_) copy.live.push_back(memory);
    const uint64_t kept = std::min<uint64_t>(events_, capacity_);
    copy.lost = events_ - kept;
    copy.events.reserve(kept);
    for (uint64_t i = copy.lost; i < events_; i++) copy.events.push_back(ring_[i % capacity_]);
    copy.time_us = time_us();
  }
  std::sort(copy.live.begin(), copy.live.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  return copy;
}

}  // namespace fsccl
