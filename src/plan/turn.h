// What several ranks that send at once use of a slot, and what is packed into one. Where each has a
// mirror of the others' it is less than a slot can hold: none of them reads while it sends, and
// what is packed is to come from the caches. Who sends alone, from where it lies, fills its slot,
// for fewer messages.
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
