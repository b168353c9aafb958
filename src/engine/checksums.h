// FSCCL_CHECKSUM between an engine and its peers: CRC32C of what a sender means, compared by
// whoever takes it.
//
// In the line of a signal the checksum of its payload lies over the high half of the fingerprint's
// sequence number: the low half tells operations apart that can meet.
//
// In a slot every piece that a step brings has its checksum in a table behind the slot, by the line
// where the piece begins. So what a step brings into a slot is taken out of it in the same pieces
// (plan.h). Mirrored slots have no table: there messages carry checksums.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/round_up.h"
#include "fsccl/transport.h"
#include "kernels/crc32c.h"
#include "plan/fingerprint.h"

namespace fsccl {

inline constexpr uint64_t kPerChecksum = 64;  // bytes of a slot
// Returns the bytes of the table of a slot, in whole lines.
inline constexpr uint64_t table_bytes(uint64_t slot_bytes) {
  return round_up((slot_bytes + kPerChecksum - 1) / kPerChecksum * sizeof(uint32_t), kPerChecksum);
}
inline constexpr size_t slot_bytes_with_checksums(size_t slot_bytes) {
  return slot_bytes + table_bytes(slot_bytes);
}
// Returns the bytes that are left for a slot that has its table in as many bytes.
inline constexpr size_t slot_bytes_beside_checksums(size_t bytes) {
  return bytes / kPerChecksum * 16 / 17 * kPerChecksum;
}

inline uint64_t checksum_over_sequence(const fsccl_transport_line_t& line) {
  return uint64_t{crc32c(line.payload, sizeof line.payload)} << 32;
}
inline void seal(fsccl_transport_line_t& line) {
  Fingerprint claim;
  std::memcpy(&claim, line.fingerprint, sizeof claim);
  claim.sequence ^= checksum_over_sequence(line);
  std::memcpy(line.fingerprint, &claim, sizeof claim);
}
// The fingerprint of a sealed line, as it was if the payload is as it was.
inline Fingerprint claim_of(const fsccl_transport_line_t& line) {
  Fingerprint claim;
  std::memcpy(&claim, line.fingerprint, sizeof claim);
  claim.sequence ^= checksum_over_sequence(line);
  return claim;
}
// They are of one operation, and one of them of a line whose payload changed.
inline bool differ_in_checksum(const Fingerprint& a, const Fingerprint& b) {
  Fingerprint other = b;
  other.sequence ^= (a.sequence ^ b.sequence) >> 32 << 32;
  return a.sequence != b.sequence && equal(a, &other);
}

}  // namespace fsccl
