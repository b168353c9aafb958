#include "allocators/placement/journal.h"

#include <algorithm>
#include <bit>
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
    case UseKind::kCodec:
      return "codec";
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
  const int64_t now =
      std::chrono::duration_cast<std::chrono::microseconds>(system_clock::now().time_since_epoch())
          .count();
  journal->clock_ahead_ = now - now_ns() / 1000;
  journal->asked_ = journal->watched() ? kLock : 0;
  return journal;
}

int64_t Journal::time_us() const { return clock_ahead_ + now_ns() / 1000; }

uint32_t Journal::use_of(const Owner& owner, bool slots) {
  using Key = std::tuple<bool, UseKind, std::string_view, uint64_t>;
  const auto found = use_numbers_.find(Key(slots, owner.kind, owner.unit, owner.stream));
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
  name(slots_[key], kind, unit);
}

void Journal::name(Slot& slot, UseKind kind, const std::string& unit) {
  const uint32_t number = use_of({kind, unit}, true);
  Use& use = uses_[number];
  if (slot.use == &use) return;
  leave(slot);
  slot.use_number = number;
  slot.use = &use;
  use.slots.push_back(&slot);
  for (LiveSlot& live : slot.live) live.alone = false;
}

void Journal::leave(Slot& slot) {
  if (!slot.use) return;
  count(*slot.use);
  std::erase(slot.use->slots, &slot);
}

void Journal::forget_slot(uint64_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(key);
  if (found == slots_.end()) return;
  leave(found->second);
  slots_.erase(found);
}

Journal::Slot& Journal::slot(uint64_t key) {
  const std::lock_guard lock(mutex_);
  return named(key);
}

Journal::Slot& Journal::named(uint64_t key) {
  Slot& slot = slots_[key];
  if (!slot.use) name(slot, UseKind::kParameters, {});
  return slot;
}

// Notes that the use has slots in this part. If its slots lie in two parts, a repeated step may
// hold them together in a new way and reach a new peak, so they are no longer `alone` and each of
// their events is counted at once.
void Journal::use_in(Use& use, size_t part) {
  use.parts |= 1u << part;
  if (!std::has_single_bit(use.parts))
    for (Slot* slot : use.slots)
      for (LiveSlot& live : slot->live) live.alone = false;
}

void Journal::slot_taken(Slot& slot, size_t part, uint64_t address, uint64_t bytes,
                         uint64_t requested) {
  const std::lock_guard lock(mutex_);
  count(*slot.use);
  LiveSlot& live = slot.live[part];
  live.address.store(address, std::memory_order_relaxed);
  live.bytes = bytes;
  live.requested = requested;
  live.events.store(++live.counted, std::memory_order_relaxed);
  use_in(*slot.use, part);
  live.alone = std::has_single_bit(slot.use->parts);
  ask_for_peak();
  take(*slot.use, slots_live_[part], {address, bytes, requested, slot.use_number});
}

void Journal::slot_given_back(Slot& slot, size_t part) {
  const std::lock_guard lock(mutex_);
  count(*slot.use);
  LiveSlot& live = slot.live[part];
  live.events.store(++live.counted, std::memory_order_relaxed);
  ask_for_peak();
  const uint64_t address = live.address.load(std::memory_order_relaxed);
  give_back(*slot.use, slots_live_[part], {address, live.bytes, live.requested, slot.use_number},
            0);
}

void Journal::slot_refused(uint64_t key, uint64_t bytes, uint64_t free) {
  const std::lock_guard lock(mutex_);
  refuse(named(key).use_number, bytes, free);
}

void Journal::block_taken(const Owner& owner, uint64_t address, uint64_t bytes,
                          uint64_t requested) {
  const std::lock_guard lock(mutex_);
  const LiveMemory memory{address, bytes, requested, use_of(owner, false)};
  blocks_[address] = memory;
  ask_for_peak();
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

void Journal::take(Use& use, std::atomic<uint64_t>& live, const LiveMemory& memory) {
  use.live += memory.bytes;
  use.peak = std::max(use.peak, use.live);
  use.allocations++;
  use.allocated += memory.bytes;
  live.store(live.load(std::memory_order_relaxed) + memory.bytes, std::memory_order_relaxed);
  note_peak();
  if (!watched()) [[likely]]
    return;
  const int64_t time = time_us();
  note(JournalAction::kTaken, memory, use.stream, time);
  if (log_) log_->allocate(time, memory.address, memory.bytes, use.stream);
}

void Journal::give_back(Use& use, std::atomic<uint64_t>& live, const LiveMemory& memory,
                        uint64_t stream) {
  use.live -= memory.bytes;
  use.frees++;
  note_peak();
  live.store(live.load(std::memory_order_relaxed) - memory.bytes, std::memory_order_relaxed);
  if (!watched()) [[likely]]
    return;
  const int64_t time = time_us();
  note(JournalAction::kGivenBack, memory, stream, time);
  if (log_) log_->free(time, memory.address, memory.bytes, stream);
}

// Two threads count slots and blocks, and each may not yet see the other's latest addition. So
// give_back() looks once more. (slot_given_back_again() does not: a repeated step reaches no new
// peak by itself.) A peak that lasts for less than the time in which a store becomes visible may be
// missed.
void Journal::note_peak() {
  const uint64_t live = live_in_slots() + blocks_live_.load(std::memory_order_relaxed);
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
  note(JournalAction::kGrown,
       {part_address + parts_[part].bytes, bytes, bytes, static_cast<uint32_t>(part)}, 0,
       time_us());
  parts_[part].bytes += bytes;
}

void Journal::released(size_t part, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  parts_[part].bytes -= bytes;
  note(JournalAction::kReleased,
       {parts_[part].address + parts_[part].bytes, bytes, bytes, static_cast<uint32_t>(part)}, 0,
       time_us());
}

void Journal::changed(size_t part, uint64_t part_address, uint64_t reach, JournalAction action,
                      uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  parts_[part] = {part_address, reach};
  note(action, {part_address + offset, bytes, bytes, static_cast<uint32_t>(part)}, 0, time_us());
}

void Journal::step() {
  const uint32_t over = asked_.load(std::memory_order_relaxed) & kPeakNow ? kPeakNow : kPeakNext;
  if (asked_.load(std::memory_order_relaxed) & over)
    asked_.fetch_and(~over, std::memory_order_relaxed);
  if (!watched()) return;
  const std::lock_guard lock(mutex_);
  note(JournalAction::kStep, {}, 0, time_us());
  if (log_) log_->flush();
}

void Journal::note(JournalAction action, const LiveMemory& memory, uint64_t stream,
                   int64_t time_us) {
  if (!capacity_) return;
  ring_[events_++ % capacity_] = {time_us, memory.address, memory.bytes, memory.requested,
                                  stream,  memory.use,     action};
}

uint64_t Journal::live_peak() const {
  return std::max(live_peak_.load(std::memory_order_relaxed),
                  live_in_slots() + blocks_live_.load(std::memory_order_relaxed));
}

// Counts the slot's events up to this number. The slot's size has not changed since the last count.
void Journal::count(Use& use, LiveSlot& slot, uint64_t events) const {
  const uint64_t taken = (events + 1) / 2 - (slot.counted + 1) / 2,
                 given_back = events / 2 - slot.counted / 2;
  use.allocations += taken;
  use.frees += given_back;
  use.allocated += taken * slot.bytes;
  use.live += (taken - given_back) * slot.bytes;
  slot.counted = events;
}

// Counts all slots of the use. Only the program's thread, which alone writes the words of slots,
// may call this.
void Journal::count(Use& use) const {
  for (Slot* slot : use.slots)
    for (LiveSlot& live : slot->live) count(use, live, live.events.load(std::memory_order_relaxed));
}

// Counts all slots as of one moment; any thread may call this. The words of slots only grow, and
// one event changes one of them. If no word has changed between two looks, all of them had these
// values at one moment, and a reader that sees a word sees everything that the program did before
// it wrote the word. The program takes the lock from now on, so it can at most be in the middle of
// one event.
std::vector<LiveMemory> Journal::count_all() const {
  struct Seen {
    uint64_t events = ~uint64_t{0}, address = 0;
  };
  std::vector<Seen> seen(slots_.size() * kSlotParts);
  asked_.fetch_add(kLock, std::memory_order_relaxed);
  for (bool changed = true; changed;) {
    changed = false;
    auto last = seen.begin();
    for (const auto& [key, slot] : slots_)
      for (const LiveSlot& live : slot.live) {
        // The two loads pair with the stores of slot_taken_again() and slot_given_back_again().
        const uint64_t events = live.events.load(std::memory_order_acquire);
        changed |= events != last->events;
        if (events != last->events) *last = {events, live.address.load(std::memory_order_acquire)};
        ++last;
      }
  }
  asked_.fetch_sub(kLock, std::memory_order_relaxed);
  std::vector<LiveMemory> held;
  auto at = seen.begin();
  for (auto& [key, slot] : slots_)
    for (LiveSlot& live : slot.live) {
      if (slot.use) count(*slot.use, live, at->events);
      if (at->events % 2)
        held.push_back({at->address, live.bytes, live.requested, slot.use_number});
      ++at;
    }
  return held;
}

std::vector<MemoryUse> Journal::list_uses() const {
  std::vector<MemoryUse> uses;
  uses.reserve(uses_.size());
  for (const Use& use : uses_)
    uses.push_back({use.kind, use.unit, use.stream, use.live, use.peak, use.allocations, use.frees,
                    use.allocated});
  return uses;
}

std::vector<MemoryUse> Journal::uses() const {
  const std::lock_guard lock(mutex_);
  count_all();
  return list_uses();
}

JournalCopy Journal::copy() const {
  JournalCopy copy;
  {
    const std::lock_guard lock(mutex_);
    copy.live = count_all();
    copy.uses = list_uses();
    copy.parts = parts_;
    for (const auto& [address, memory] : blocks_) copy.live.push_back(memory);
    const uint64_t kept = std::min<uint64_t>(events_, capacity_);
    copy.lost = events_ - kept;
    copy.events.reserve(kept);
    for (uint64_t i = copy.lost; i < events_; i++) copy.events.push_back(ring_[i % capacity_]);
    copy.time_us = time_us();
  }
  std::sort(copy.live.begin(), copy.live.end(),
            [](const auto& a, const auto& b) { return a.address < b.address; });
  return copy;
}

}  // namespace fsccl
