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
  journal->program_locks_ = journal->watched() ? 1 : 0;
  return journal;
}

int64_t Journal::time_us() const { return clock_ahead_ + now_ns() / 1000; }

uint32_t Journal::use_of(const Owner& owner, bool slots) {
  using Place = std::tuple<bool, UseKind, std::string_view, uint64_t>;
  const auto found = use_numbers_.find(Place(slots, owner.kind, owner.unit, owner.stream));
  if (found != use_numbers_.end()) return found->second;
  const auto number = static_cast<uint32_t>(uses_.size());
  Use& use = uses_.emplace_back();
  use.kind = owner.kind;
  use.unit = owner.unit;
  use.stream = owner.stream;
  use_numbers_.emplace(std::tuple(slots, owner.kind, use.unit, owner.stream), number);
  return number;
}

void Journal::name_slot(uint64_t key, UseKind kind, const std::string& unit) {
  const std::lock_guard lock(mutex_);
  Named& slot = slots_[key];
  slot.use_number = use_of({kind, unit}, true);
  slot.use = &uses_[slot.use_number];
}

void Journal::forget_slot(uint64_t key) {
  const std::lock_guard lock(mutex_);
  slots_.erase(key);
}

Journal::Named& Journal::named(uint64_t key) {
  const auto found = slots_.find(key);
  if (found != slots_.end()) [[likely]]
    return found->second;
  name_slot(key, UseKind::kParameters, {});  // of nobody who said who it is
  return slots_.find(key)->second;
}

void Journal::slot_taken(uint64_t key, size_t part, uint64_t address, uint64_t bytes, uint64_t requested) {
  Named& slot = named(key);
  const ProgramLock lock(*this);
  version_.begin();
  LiveSlot& live = slot.live[part];
  live.address = address;
  live.bytes = bytes;
  live.requested = requested;
  take(*slot.use, slots_live_, {address, bytes, requested, slot.use_number});
  version_.end();
}

void Journal::slot_given_back(uint64_t key, size_t part) {
  Named& slot = named(key);
  const ProgramLock lock(*this);
  version_.begin();
  LiveSlot& live = slot.live[part];
  give_back(*slot.use, slots_live_, {live.address, live.bytes, live.requested, slot.use_number}, 0);
  live.bytes = 0;
  version_.end();
}

void Journal::slot_refused(uint64_t key, uint64_t bytes, uint64_t free) {
  const uint32_t use = named(key).use_number;
  const std::lock_guard lock(mutex_);
  refuse(use, bytes, free);
}

void Journal::block_taken(const Owner& owner, uint64_t address, uint64_t bytes, uint64_t requested) {
  const std::lock_guard lock(mutex_);
  const LiveMemory memory{address, bytes, requested, use_of(owner, false)};
  blocks_[address] = memory;
  take(uses_[memory.use], blocks_live_, memory);
}

void Journal::block_given_back(uint64_t address, uint64_t stream) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return;
  give_back(uses_[found->second.use], blocks_live_, found->second, stream);
  blocks_.erase(found);
}

void Journal::block_refused(const Owner& owner, uint64_t bytes, uint64_t free) {
  const std::lock_guard lock(mutex_);
  refuse(use_of(owner, false), bytes, free);
}

void Journal::take(Use& use, Live& live, const LiveMemory& memory) {
  use.live += memory.bytes;
  if (use.live > use.peak) use.peak = use.live;
  use.allocations += 1;
  use.allocated += memory.bytes;
  live += memory.bytes;
  note_peak();
  if (!watched()) [[likely]]
    return;
  const int64_t time = time_us();
  note(JournalAction::kTaken, memory, use.stream, time);
  if (log_) log_->allocate(time, memory.address, memory.bytes, use.stream);
}

void Journal::give_back(Use& use, Live& live, const LiveMemory& memory, uint64_t stream) {
  use.live -= memory.bytes;
  use.frees += 1;
  note_peak();
  live -= memory.bytes;
  if (!watched()) [[likely]]
    return;
  const int64_t time = time_us();
  note(JournalAction::kGivenBack, memory, stream, time);
  if (log_) log_->free(time, memory.address, memory.bytes, stream);
}

// Slots and blocks are counted by two threads, each of which may not see yet what the other has just added; so whoever gives back
// looks once more. What was there for less than a store takes to be seen, beside another, may go unnoticed.
void Journal::note_peak() {
  const uint64_t live = slots_live_ + blocks_live_;
  uint64_t peak = live_peak_.load(std::memory_order_relaxed);
  while (live > peak && !live_peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
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

void Journal::changed(size_t part, uint64_t part_address, uint64_t reach, JournalAction action, uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  parts_[part] = {part_address, reach};
  note(action, {part_address + offset, bytes, bytes, static_cast<uint32_t>(part)}, 0, time_us());
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

uint64_t Journal::live_peak() const { return std::max(live_peak_.load(std::memory_order_relaxed), slots_live_ + blocks_live_); }

// The program, which waits for the lock from now on, is at most in the middle of what it had begun.
template <class Read>
void Journal::copy_slots(Read&& read) const {
  program_locks_.fetch_add(1, std::memory_order_relaxed);
  version_.read(read);
  program_locks_.fetch_sub(1, std::memory_order_relaxed);
}

std::vector<MemoryUse> Journal::list_uses() const {
  std::vector<MemoryUse> uses;
  uses.reserve(uses_.size());
  for (const Use& use : uses_)
    uses.push_back({use.kind, use.unit, use.stream, use.live, use.peak, use.allocations, use.frees, use.allocated});
  return uses;
}

std::vector<MemoryUse> Journal::uses() const {
  const std::lock_guard lock(mutex_);
  std::vector<MemoryUse> uses;
  copy_slots([&] { uses = list_uses(); });
  return uses;
}

JournalCopy Journal::copy() const {
  JournalCopy copy;
  {
    const std::lock_guard lock(mutex_);
    copy_slots([&] {
      copy.uses = list_uses();
      copy.live.clear();
      for (const auto& [key, slot] : slots_)
        for (const LiveSlot& live : slot.live)
          if (const uint64_t bytes = live.bytes) copy.live.push_back({live.address, bytes, live.requested, slot.use_number});
    });
    copy.parts = parts_;
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
