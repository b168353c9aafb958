// Debug mode of slots. Callers see slots through a guarded view of the arena (guarded_view.h), in
// which a slot is accessible only while the caller holds it. Parameters are accessible from the end
// of their gather to reshard, and only readable if ranks share them. Gradients are accessible from
// grad() to reduce_grads(). A stray access raises SIGSEGV, with a line that names the slot
// (fault_notes.h). The parameters of a unit that keeps its slot stay readable after reshard, until
// the pool takes the slot.
//
// Slots that only this rank writes to have red zones before, behind and between their parameters.
// The zones are written when the slot is released by all ranks, because until then a peer may read
// its former contents, and they are checked before the slot is given back.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "allocators/host/arena.h"
#include "allocators/host/guarded_view.h"
#include "base/status.h"
#include "pool/host/pool_memory.h"

namespace fsccl {

class SlotWatch {
 public:
  static constexpr uint64_t kZone = 64;  // bytes of the zone before a slot, and at least behind it

  // `arena_bytes` counts the bytes from the control pages on. `pool` is the name of the pool in
  // texts.
  static Result<std::unique_ptr<SlotWatch>> create(const HostArena& arena, uint64_t arena_bytes,
                                                   std::string pool);
  ~SlotWatch();

  const std::byte* base() const { return view_.base(); }
  // Returns the address at which a caller sees this address of the arena.
  std::byte* seen(const std::byte* address) const { return view_.base() + (address - arena_); }

  // The content of a key's slots: a text for all of it, and its pieces in order, each with a name.
  struct NamedRange {
    uint64_t begin = 0, end = 0;
    std::string name;
  };
  void name(uint64_t key, std::string text, std::vector<NamedRange> pieces);
  void taken(PartKind part, uint64_t key, std::byte* data, uint64_t bytes, uint64_t room);
  // Lets the caller touch the slot, at `seen`, from now on. With `poison` the slot has no contents
  // yet, and is filled with a pattern that makes reads of it visible.
  void opened(PartKind part, uint64_t key, std::byte* seen, Access access, bool poison);
  Status intact(PartKind part, uint64_t key);  // checks the red zones, and writes them again
  void given_back(PartKind part, uint64_t key);

 private:
  struct Slot {
    std::byte *data = nullptr, *seen = nullptr;
    uint64_t bytes = 0, room = 0;  // room: the bytes from `data` on with the red zone behind
    int note = -1;
    bool zones = false;
  };
  SlotWatch(GuardedView view, const HostArena& arena, std::string pool);
  struct Contents {
    std::string text;
    std::vector<NamedRange> pieces;
  };
  template <class Visit>
  void each_zone(const Slot& slot, uint64_t key, const Visit& visit);
  void write_zones(Slot& slot, uint64_t key);
  void guard(const Slot& slot, Access access);
  void note(Slot& slot, uint64_t key, const char* state);

  GuardedView view_;
  const std::byte* arena_;
  const std::string pool_;
  int pool_note_;
  std::mutex mutex_;  // a gather may end in any thread
  std::map<uint64_t, Contents> contents_;
  std::map<std::pair<PartKind, uint64_t>, Slot> slots_;  // the slots that were ever taken
};

}  // namespace fsccl
