// Places the slots of one tick after another in the ranks' rings. The places are the same on all
// ranks, because all ranks run the same rounds. The bytes of a slot are used again kTickWindow
// ticks later at the earliest (tick_window.h). For this a ring is as long as kTickWindow + 2 of its
// largest slots: one more for the bytes that are left over at its end, and one for overlap.
//
// If rings are mirrors, small slots go round in a short ring of their own at the beginning. So
// bytes from a network arrive in caches and on pages that exist. In the large ring small slots
// would go, one after another, over all the memory for the largest ones.
//
// Two ranks that share memory and send to each other exchange their rings each time they come to
// the end of the rings. A rank then writes a slot to the lines that it read last, which its own
// caches may still hold. Without the exchange it writes to lines that the peer has read, and each
// of them must first be taken from the peer's caches: an all-gather of 1 MiB takes 1.2 times as
// long if the two cores share no cache (measured on Zen 5). The window of ticks covers both rings,
// so an exchange needs no signals. Plans name ranks and not rings, so they do not change.
#pragma once
#include <array>
#include <cstddef>

#include "fsccl/transport.h"

namespace fsccl {

// A SlotPlace says where the slot of a tick lies in each rank's ring.
struct SlotPlace {
  size_t at = 0;
  bool exchanged = false;  // each of the two ranks writes to the ring of the other
};

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

  // Returns the place of the next slot, if it has so many bytes. `exchange`: the ranks exchange
  // their rings if the ring ends before this slot, which then lies at the ring's beginning.
  SlotPlace place_of_next(size_t bytes, bool exchange) const {
    const bool small = bytes <= most_small_;
    const size_t at = at_[small];
    if (at + bytes <= end_[small]) return {at, exchanged_};
    return {small ? 0 : end_[1], exchanged_ != exchange};
  }
  // Places the next slot.
  SlotPlace next(size_t bytes, bool exchange) {
    const SlotPlace place = place_of_next(bytes, exchange);
    at_[bytes <= most_small_] = place.at + bytes;
    exchanged_ = place.exchanged;
    return place;
  }

 private:
  static constexpr size_t kLine = 64;
  size_t most_small_ = 0;
  // [0] is for all other slots, [1] for the small ones, which come first in the ring.
  std::array<size_t, 2> end_{}, at_{};
  bool exchanged_ = false;
};

}  // namespace fsccl
