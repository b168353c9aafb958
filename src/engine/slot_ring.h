// Places the slots of one tick after another in the ranks' rings. The places are the same on all
// ranks, because all ranks run the same rounds. The bytes of a slot are used again kTickWindow
// ticks later at the earliest (tick_window.h). For this a ring is as long as kTickWindow + 2 of its
// largest slots: one more for the bytes that are left over at its end, and one for overlap.
//
// If rings are mirrors, small slots go round in a short ring of their own at the beginning. So
// bytes from a network arrive in caches and on pages that exist. In the large ring small slots
// would go, one after another, over all the memory for the largest ones.
#pragma once
#include <array>
#include <cstddef>

#include "fsccl/transport.h"

namespace fsccl {

class SlotRing {
 public:
  SlotRing() = default;
  // With `small_apart`, small slots get the part of the ring that is left over by the largest
  // slots.
  SlotRing(size_t ring_bytes, size_t slot_bytes, bool small_apart)
      : most_small_(small_apart ? (ring_bytes / FSCCL_TRANSPORT_SLOTS - slot_bytes) / kLine * kLine
                                : 0),
        end_{ring_bytes, FSCCL_TRANSPORT_SLOTS * most_small_},
        at_{end_[1], 0} {}

  // Returns the place of the next slot, if it has so many bytes.
  size_t place_of_next(size_t bytes) const {
    const bool small = bytes <= most_small_;
    const size_t at = at_[small];
    if (at + bytes <= end_[small]) return at;
    return small ? 0 : end_[1];
  }
  // Places the next slot.
  size_t next(size_t bytes) {
    const size_t place = place_of_next(bytes);
    at_[bytes <= most_small_] = place + bytes;
    return place;
  }

 private:
  static constexpr size_t kLine = 64;
  size_t most_small_ = 0;
  // [0] is for all other slots, [1] for the small ones, which come first in the ring.
  std::array<size_t, 2> end_{}, at_{};
};

}  // namespace fsccl
