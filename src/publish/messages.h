// The messages between a subscriber and a rank of a publication after the handshake (wire/frame.h),
// beside the catalog. Versions are counted from 1.
//
//     Subscribe ->  nothing more; the first message       <- Catalog
//     <- News       the newest version of this rank; also each second, as a sign of life
//     Want ->       what leads from version `base` (0: nothing is there) to `version`, once the
//                   rank has that; a later Want takes the place of one that was not answered
//     <- Version    the answer; `bytes` bytes follow that are in no frame
//     <- Gone       the rank has that version no more: another one must be asked for
//     Have ->       the subscriber's version is complete
//     <- Goodbye    the rank has ended its part
//
// The bytes behind Version are, with base 0, for each block of words its CRC32C (4 bytes) and its
// words; else the records base + 1 .. version, for each record its blocks in order, as the delta
// codec writes them. `sum` is the CRC32C of the CRC32C of all blocks of the new words.
#pragma once
#include <cstdint>

#include "base/status.h"
#include "wire/bytes.h"

namespace fsccl::publish {

inline constexpr size_t kChecksumBytes = 4;  // before each block of a whole copy

struct Want {
  uint64_t base = 0, version = 0;
};
struct VersionHead {
  uint64_t base = 0, version = 0, label = 0, bytes = 0;
  uint32_t sum = 0;
};

Bytes encode(const Want& want);
Bytes encode(const VersionHead& head);
Bytes encode_version(uint64_t version);  // the payload of News, Gone and Have
// FSCCL_ERR_PROTOCOL: a base that is not older than the version.
Result<Want> decode_want(ByteView payload);
// FSCCL_ERR_PROTOCOL: a base that is not older than the version, or more bytes than the answer can
// have for `words` words.
Result<VersionHead> decode_version_head(ByteView payload, uint64_t words);
Result<uint64_t> decode_version(ByteView payload);

// The bytes of a whole copy, and the most that a rank sends as records: where these are longer it
// sends a whole copy.
uint64_t whole_bytes(uint64_t words);
uint64_t most_record_bytes(uint64_t words);

}  // namespace fsccl::publish
