// Debug mode of slots. Callers see slots through a guarded view of the arena (guarded_view.h), open
// only while the slot is theirs: parameters from the end of their gather to reshard, and only to be
// read where ranks share them; gradients from grad() to reduce_grads(). A stray access is SIGSEGV,
// with a line that names the slot (fault_notes.h). A kept unit's parameters stay readable after
// reshard, until the pool takes the slot.
//
// Slots that this rank alone writes to have red zones before, behind and between their parameters,
// within the pages that are open; they are written when the slot is this rank's (a peer may read
// until then what was there before), and looked at before it is given back.
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
  static constexpr uint64_t kZone = 64;  // bytes before a slot's, and at least as many behind

  // `arena_bytes`: from its control pages on. `pool`: to call it in a text.
  static Result<std::unique_ptr<SlotWatch>> create(const HostArena& arena, uint64_t arena_bytes,
                                                   std::string pool);
  ~SlotWatch();

  const std::byte* base() const { return view_.base(); }
  // Returns where a caller sees what the library has at this address of the arena.
  std::byte* seen(const std::byte* address) const { return view_.base() + (address - arena_); }

  // The content of a key's slots: a text for all of it, and its pieces in order, each with a name.
  struct NamedRange {
    uint64_t begin = 0, end = 0;
    std::string name;
  };
  void name(uint64_t key, std::string text, std::vector<NamedRange> pieces);
  void taken(PartKind part, uint64_t key, std::byte* data, uint64_t bytes, uint64_t room);
  // From now on the caller may touch it, at `seen`. `poison`: nothing is in it yet, which shall
  // show.
  void opened(PartKind part, uint64_t key, std::byte* seen, Access access, bool poison);
  Status intact(PartKind part, uint64_t key);  // its red zones, which are as new afterwards
  void given_back(PartKind part, uint64_t key);

 private:
  struct Slot {
    std::byte *data = nullptr, *seen = nullptr;
    uint64_t bytes = 0, room = 0;  // room: from `data` on, the red zone behind included
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
  std::map<std::pair<PartKind, uint64_t>, Slot> slots_;  // that were ever taken
};

}  // namespace fsccl
