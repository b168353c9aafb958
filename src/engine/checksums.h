// The checksums between an engine and its peers (FSCCL_CHECKSUM). The sender makes a CRC32C of the
// bytes in its own memory, and the receiver compares it.
//
// In the line of a signal, the checksum of the payload is combined with the high half of the
// fingerprint's sequence number. The low half suffices to tell operations apart that can meet.
//
// In a slot, every piece that a step writes has its checksum in a table behind the slot, at the
// index of the line where the piece begins. Therefore the bytes that one step writes to a slot are
// read from it in the same pieces (plan.h). Mirrored slots have no table, because messages carry
// checksums.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/round_up.h"
#include "fsccl/transport.h"
#include "kernels/crc32c.h"
#include "plan/fingerprint.h"

namespace fsccl {

inline constexpr uint64_t kPerChecksum = 64;  // a slot has a checksum for each so many bytes
// Returns the bytes of the table of a slot, in whole lines.
inline constexpr uint64_t table_bytes(uint64_t slot_bytes) {
  return round_up((slot_bytes + kPerChecksum - 1) / kPerChecksum * sizeof(uint32_t), kPerChecksum);
}
inline constexpr size_t slot_bytes_with_checksums(size_t slot_bytes) {
  return slot_bytes + table_bytes(slot_bytes);
}
// Returns the bytes that are left for a slot if the slot and its table together have `bytes`.
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
// Returns the fingerprint of a sealed line. It is the original one if the payload has not changed.
inline Fingerprint claim_of(const fsccl_transport_line_t& line) {
  Fingerprint claim;
  std::memcpy(&claim, line.fingerprint, sizeof claim);
  claim.sequence ^= checksum_over_sequence(line);
  return claim;
}
// Returns true if both are of one operation, and the payload of one of the two lines has changed.
inline bool differ_in_checksum(const Fingerprint& a, const Fingerprint& b) {
  Fingerprint other = b;
  other.sequence ^= (a.sequence ^ b.sequence) >> 32 << 32;
  return a.sequence != b.sequence && equal(a, &other);
}

}  // namespace fsccl
