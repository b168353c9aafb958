// The part of a ring in which slots of one size go round.
#pragma once
#include <algorithm>

#include "engine/slot_ring.h"

namespace fsccl {

struct SlotSpan {
  size_t begin, end;
  size_t bytes() const { return end - begin; }
};

// Places slots of so many bytes, until the ring has come round many times.
inline SlotSpan span_of_slots(SlotRing& ring, size_t bytes) {
  SlotSpan span{SIZE_MAX, 0};
  for (int tick = 0; tick < 1000; tick++) {
    const size_t at = ring.next(bytes, false).at;
    span.begin = std::min(span.begin, at);
    span.end = std::max(span.end, at + bytes);
  }
  return span;
}

}  // namespace fsccl
