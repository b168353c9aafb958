// Decides how a slot is written: through the caches, or past them. A peer reads the bytes next.
// With plain stores each line moves from one cache to the other, and back when the slot is written
// again, unless the ranks exchange their rings (slot_ring.h). This is best if the two cores are
// near each other, and several times slower than a detour through memory if they are not. The
// measurement at the start says which of the two is the case. It may change, because the cores of a
// virtual machine move. A writer notices by its own time: plain stores take as long as a copy if
// the cores are near, and ten times as long if they are not. So the writer measures plain stores,
// gives them up when they are slow, and tries them again from time to time. Each writer decides for
// itself. With plain stores, copies are made as was fastest at the start. Otherwise the contents of
// slots come from far away, and it helps to copy several pages side by side.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "kernels/kernels.h"
#include "plan/cost.h"

namespace fsccl {

class SlotStores {
 public:
  // `streaming_from`: from this size on streaming stores were better at the start (UINT64_MAX:
  // never). `ring_bytes`: so many bytes are written before a slot is written again. `copy_rate`: ns
  // a byte of a copy within the caches. `near`: the side-by-side copies with plain stores. `clock`:
  // a clock in ns.
  SlotStores(uint64_t streaming_from, uint64_t ring_bytes, double copy_rate, SideBySide near,
             int64_t (*clock)() = now_ns)
      : streaming_from_(streaming_from),
        ring_bytes_(ring_bytes),
        limit_(kSlow * copy_rate),
        clock_(clock),
        near_(near),
        streams_(streaming_from <= kEvery) {}

  // Returns how far away peers are, as the present choice assumes.
  Cores cores() const { return streams_ ? Cores::far : Cores::near; }
  // Returns true if a copy with plain stores into a slot, or out of one, copies pages side by side.
  bool side_by_side(bool into) const {
    return streams_ ? !into
                    : near_ == SideBySide::both || (near_ == SideBySide::from_slots && !into);
  }

  // Returns true if a slot of so many bytes is written past the caches.
  bool past_caches(uint64_t slot_bytes) const {
    return slot_bytes < kLeast ? slot_bytes >= streaming_from_ : streams_;
  }

  // The write of a part of a slot: the stores to use, and whether wrote() must be called after it.
  struct Write {
    Stores stores;
    bool watched = false;
    uint64_t bytes = 0;
    int64_t begin_ns = 0;
  };
  // Begins to write `bytes` of a slot of `slot_bytes`.
  Write begin(uint64_t bytes, uint64_t slot_bytes) {
    if (bytes < kLeast) return {past_caches(slot_bytes) ? Stores::streaming : Stores::cached};
    written_ += bytes;
    if (streams_) {
      // The write that ends this period goes past the caches, too.
      if (written_ >= kStay * ring_bytes_) turn(false);
      return {Stores::streaming};
    }
    if ((since_ += bytes) < kEvery) return {Stores::cached};
    since_ = 0;
    return {Stores::cached, true, bytes, clock_()};
  }
  void wrote(const Write& write) {
    const double rate =
        static_cast<double>(clock_() - write.begin_ns) / static_cast<double>(write.bytes);
    // One sample says little, because the thread may have been interrupted, and because lines that
    // were written past the caches are slow once.
    rate_ += (std::min(rate, 2 * limit_) - rate_) / 8;
    if (rate_ > limit_ && written_ > 2 * ring_bytes_) turn(true);
  }

 private:
  // The store buffer hides the time of a smaller write.
  static constexpr uint64_t kLeast = 4096;
  static constexpr uint64_t kEvery = 64 << 10;  // bytes from one sample to the next
  static constexpr uint64_t kStay = 64;         // rings to write until plain stores are tried again
  // Stores are slow if they take so many times as long as a copy. A copy from memory, instead of a
  // cache, takes 4 to 6 times as long.
  static constexpr double kSlow = 10;

  void turn(bool streams) {
    streams_ = streams;
    written_ = 0;
    rate_ = 0;
  }

  uint64_t streaming_from_, ring_bytes_;
  double limit_;
  int64_t (*clock_)();
  SideBySide near_;
  bool streams_;
  uint64_t written_ = 0, since_ = 0;  // bytes since the last change, and since the last sample
  double rate_ = 0;                   // recent ns a byte of plain stores
};

}  // namespace fsccl
