// The part of a slot that several ranks use when they send at once, and the part that is packed
// into one message. If each rank has a mirror of the others' slots, this part is less than a slot
// can hold: no rank reads while it sends, and packed bytes should come from the caches. A rank that
// sends alone, straight from its buffer, fills its slot, for fewer messages.
#pragma once
#include <algorithm>
#include <cstdint>

namespace fsccl {

inline constexpr uint64_t kMostTurnBytes = 512u << 10, kMostPackedBytes = 256u << 10;
inline uint64_t turn_bytes(uint64_t slot_bytes, bool mirrored) {
  return mirrored ? std::min(slot_bytes, kMostTurnBytes) : slot_bytes;
}
inline uint64_t packed_bytes(uint64_t slot_bytes, bool mirrored) {
  return mirrored ? std::min(slot_bytes, kMostPackedBytes) : slot_bytes;
}

}  // namespace fsccl
