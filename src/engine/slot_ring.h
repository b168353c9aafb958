// Places the slots of one tick after another in the ranks' rings: alike on all ranks,
// for they run the same rounds. A slot's bytes are used again kTickWindow ticks later at the
// earliest (tick_window.h), for a ring is as long as kTickWindow + 2 of its largest slots: one more
// for what is left over at its end, one for overlap.
//
// Where rings are mirrors, small slots go round in a short ring of their own at the beginning: what
// comes from a network lands in caches and on pages that are there, and not, one small slot after
// another, all over memory for the largest.
#pragma once
#include <array>
#include <cstddef>

#include "fsccl/transport.h"

namespace fsccl {

class SlotRing {
 public:
  SlotRing() = default;
  // `small_apart`: as much of the ring as the largest slots leave over is for small ones.
  SlotRing(size_t ring_bytes, size_t slot_bytes, bool small_apart)
      : most_small_(small_apart ? (ring_bytes / FSCCL_TRANSPORT_SLOTS - slot_bytes) / kLine * kLine
                                : 0),
        end_{ring_bytes, FSCCL_TRANSPORT_SLOTS * most_small_},
        at_{end_[1], 0} {}

  // The place of the next slot.
  size_t next(size_t bytes) {
    const bool small = bytes <= most_small_;
    size_t& at = at_[small];
    if (at + bytes > end_[small]) at = small ? 0 : end_[1];
    const size_t place = at;
    at += bytes;
    return place;
  }

 private:
  static constexpr size_t kLine = 64;
  size_t most_small_ = 0;
  std::array<size_t, 2> end_{},
      at_{};  // for all other slots, and for the small ones, which come first
};

}  // namespace fsccl
