#include "pool/host/slot_watch.h"

#include <cstring>

#include "allocators/host/fault_notes.h"
#include "base/limits.h"
#include "base/log.h"

namespace fsccl {
namespace {

constexpr int kPoison = 0xff, kZoneByte = 0xfd;

}  // namespace

Result<std::unique_ptr<SlotWatch>> SlotWatch::create(const HostArena& arena, uint64_t arena_bytes,
                                                     std::string pool) {
  FSCCL_ASSIGN(GuardedView view, GuardedView::create(arena.fd(), arena_bytes));
  std::unique_ptr<SlotWatch> watch(new SlotWatch(std::move(view), arena, std::move(pool)));
  set_fault_note(watch->pool_note_, watch->base(), arena_bytes,
                 fmt::format("{}, in no slot", watch->pool_));
  return watch;
}

SlotWatch::SlotWatch(GuardedView view, const HostArena& arena, std::string pool)
    : view_(std::move(view)),
      arena_(arena.control()),
      pool_(std::move(pool)),
      pool_note_(add_fault_note()) {}

SlotWatch::~SlotWatch() {
  for (const auto& [key, slot] : slots_) remove_fault_note(slot.note);
  remove_fault_note(pool_note_);
}

void SlotWatch::name(uint64_t key, std::string text, std::vector<NamedRange> pieces) {
  const std::lock_guard lock(mutex_);
  contents_[key] = {std::move(text), std::move(pieces)};
}

void SlotWatch::guard(const Slot& slot, Access access) {
  // Slots are whole pages of 4096 bytes. A larger page may belong to two slots.
  if (page_bytes() > 4096) access = Access::write;
  if (set_access(slot.seen, slot.bytes, access)) return;
  // The process has too many mappings (vm.max_map_count). Slots stay unguarded, which is better
  // than a false alarm.
  FSCCL_LOG_ONCE(kWarn,
                 "{}: the system takes no more changes of access, slots are not guarded any more",
                 pool_);
  (void)set_access(slot.seen, slot.bytes, Access::write);
}

void SlotWatch::note(Slot& slot, uint64_t key, const char* state) {
  set_fault_note(
      slot.note, slot.seen, slot.bytes,
      fmt::format("{} ({} bytes in {}), {}", contents_[key].text, slot.bytes, pool_, state));
}

void SlotWatch::taken(PartKind part, uint64_t key, std::byte* data, uint64_t bytes, uint64_t room) {
  const std::lock_guard lock(mutex_);
  auto [entry, first] = slots_.try_emplace({part, key});
  Slot& slot = entry->second;
  if (first) slot.note = add_fault_note();
  slot = {data, seen(data), bytes, room, slot.note, false};
  note(slot, key, "which are not there yet");
}

// Calls visit(begin, end, piece before, piece behind) for each zone. Offsets count from `data` on.
template <class Visit>
void SlotWatch::each_zone(const Slot& slot, uint64_t key, const Visit& visit) {
  auto begin = -static_cast<int64_t>(kZone);
  const NamedRange* before = nullptr;
  for (const NamedRange& piece : contents_[key].pieces) {
    visit(begin, static_cast<int64_t>(piece.begin), before, &piece);
    begin = static_cast<int64_t>(piece.end);
    before = &piece;
  }
  visit(begin, static_cast<int64_t>(slot.room), before, nullptr);
}

void SlotWatch::write_zones(Slot& slot, uint64_t key) {
  each_zone(slot, key, [&](int64_t begin, int64_t end, const NamedRange*, const NamedRange*) {
    if (end > begin) std::memset(slot.data + begin, kZoneByte, static_cast<size_t>(end - begin));
  });
  slot.zones = true;
}

void SlotWatch::opened(PartKind part, uint64_t key, std::byte* seen, Access access, bool poison) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[{part, key}];
  slot.seen = seen;
  if (poison) std::memset(slot.data, kPoison, slot.bytes);
  if (part == PartKind::own && !slot.zones) write_zones(slot, key);
  note(slot, key, access == Access::read ? "which are read-only" : "which are the caller's");
  guard(slot, access);
}

Status SlotWatch::intact(PartKind part, uint64_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find({part, key});
  if (found == slots_.end() || !found->second.zones) return success();
  Slot& slot = found->second;
  Status status;
  each_zone(slot, key,
            [&](int64_t begin, int64_t end, const NamedRange* before, const NamedRange* behind) {
              for (int64_t at = begin; status.ok() && at < end; at++) {
                if (slot.data[at] == std::byte(kZoneByte)) continue;
                const bool beyond = before && (!behind || at - begin < end - at);
                status = fail(FSCCL_ERR_INVALID_STATE,
                              "the {} ({} bytes in {}) were written beyond the {} of '{}': byte {} "
                              "{} it is {:#04x}",
                              contents_[key].text, slot.bytes, pool_, beyond ? "end" : "begin",
                              beyond   ? before->name
                              : behind ? behind->name
                                       : "",
                              beyond ? at - begin : end - at, beyond ? "behind" : "before",
                              static_cast<int>(slot.data[at]));
              }
            });
  if (!status.ok()) write_zones(slot, key);
  return status;
}

void SlotWatch::given_back(PartKind part, uint64_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find({part, key});
  if (found == slots_.end()) return;
  found->second.zones = false;
  note(found->second, key, "after their slot was given back");
  guard(found->second, Access::none);
}

}  // namespace fsccl
