// Places the slots of one tick after another in the ranks' rings. The places are the same on all
// ranks, because all ranks run the same rounds. The bytes of a slot are used again kTickWindow
// ticks later at the earliest (tick_window.h). For this a ring is as long as kTickWindow + 2 of its
// largest slots: one more for the bytes that are left over at its end, and one for overlap.
//
// If rings are mirrors, smaller slots go round in shorter rings of their own: those of up to a turn
// (plan/turn.h), and those of up to a 16th of a turn. So bytes from a network arrive in caches and
// on pages that exist. In one ring small slots would go, one after another, over all the memory for
// the largest ones.
//
// Two ranks that share memory and send to each other exchange their rings each time they come to
// the end of the rings. A rank then writes a slot to the lines that it read last, which its own
// caches may still hold. Without the exchange it writes to lines that the peer has read, and each
// of them must first be taken from the peer's caches: an all-gather of 1 MiB takes 1.2 times as
// long if the two cores share no cache (measured on Zen 5). The window of ticks covers both rings,
// so an exchange needs no signals. Plans name ranks and not rings, so they do not change.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

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
  // Slots of up to `turn_bytes`, and smaller ones, get the part of the ring that is left over by
  // the largest slots. 0: all slots go round in the whole ring.
  SlotRing(size_t ring_bytes, size_t slot_bytes, size_t turn_bytes) {
    size_t left = turn_bytes ? ring_bytes / FSCCL_TRANSPORT_SLOTS - slot_bytes : 0;
    for (const size_t bytes : {turn_bytes, turn_bytes / 16}) {
      if (bytes >= slot_bytes) continue;
      const size_t most = std::min(bytes, left) / kLine * kLine;
      if (most == 0) break;
      parts_[++smallest_].most = most;
      left -= most;
    }
    size_t begin = 0;
    for (size_t i = smallest_; i > 0; i--) {
      const size_t end = begin + FSCCL_TRANSPORT_SLOTS * parts_[i].most;
      parts_[i] = {parts_[i].most, begin, end, begin};
      begin = end;
    }
    parts_[0] = {SIZE_MAX, begin, ring_bytes, begin};
  }

  // Returns the place of the next slot, if it has so many bytes. `exchange`: the ranks exchange
  // their rings if this part of the ring ends before the slot, which then lies at its beginning.
  SlotPlace place_of_next(size_t bytes, bool exchange) const {
    const Part& part = parts_[part_of(bytes)];
    if (part.fits(bytes)) [[likely]]
      return {part.at, exchanged_};
    return {part.begin, exchanged_ != exchange};
  }
  // Places the next slot.
  SlotPlace next(size_t bytes, bool exchange) {
    Part& part = parts_[part_of(bytes)];
    if (!part.fits(bytes)) [[unlikely]] {
      part.at = part.begin;
      exchanged_ = exchanged_ != exchange;
    }
    const SlotPlace place{part.at, exchanged_};
    part.at += bytes;
    return place;
  }

 private:
  static constexpr size_t kLine = 64;
  // A part of the ring, for slots of up to `most` bytes. The next one lies at `at`.
  struct Part {
    size_t most, begin, end, at;
    bool fits(size_t bytes) const { return at + bytes <= end; }
  };
  size_t part_of(size_t bytes) const {
    size_t part = smallest_;
    while (bytes > parts_[part].most) part--;
    return part;
  }

  // The first part is for the largest slots, and has the end of the ring. The part for the smallest
  // ones has the beginning.
  std::array<Part, 3> parts_{{{SIZE_MAX, 0, 0, 0}}};
  size_t smallest_ = 0;
  bool exchanged_ = false;
};

}  // namespace fsccl
