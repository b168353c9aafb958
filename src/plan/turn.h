// Three limits of mirrored slots. turn_bytes() is the part of a slot that a rank fills in a turn
// when all ranks send. packed_bytes() is the part that a rank packs before one put. Both are less
// than a slot can hold: a rank does not read while it sends, so turns must be short, and packed
// bytes should still be in the caches when they are sent. lone_bytes() is the part that a rank
// fills which sends and does not receive, straight from its buffer. Large parts take fewer messages
// and let the sender be further ahead of the receivers, but one message does not overlap with
// others. So the part is an eighth of what the rank sends, if a slot holds as much, but not less
// than a turn.
#pragma once
#include <algorithm>
#include <cstdint>

namespace fsccl {

inline constexpr uint64_t kMostTurnBytes = 512u << 10, kMostPackedBytes = 256u << 10;
// A slot has room for a line of every rank, because a plan may cut it into whole lines for each
// rank. The channels make slots that large, and the parts of slots below are not smaller.
inline uint64_t least_slot_bytes(int ranks) { return 64 * static_cast<uint64_t>(ranks); }
inline uint64_t turn_bytes(uint64_t slot_bytes, bool mirrored, int ranks) {
  const uint64_t most = std::max(kMostTurnBytes, least_slot_bytes(ranks));
  return mirrored ? std::min(slot_bytes, most) : slot_bytes;
}
inline uint64_t lone_bytes(uint64_t slot_bytes, bool mirrored, int ranks, uint64_t sent_bytes) {
  if (!mirrored) return slot_bytes;
  return std::min(slot_bytes, std::max(turn_bytes(slot_bytes, true, ranks), sent_bytes / 8));
}
inline uint64_t packed_bytes(uint64_t slot_bytes, bool mirrored, int ranks) {
  const uint64_t most = std::max(kMostPackedBytes, least_slot_bytes(ranks));
  return mirrored ? std::min(slot_bytes, most) : slot_bytes;
}

}  // namespace fsccl
