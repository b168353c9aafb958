// The messages between a subscriber and a rank of a publication after the handshake (wire/frame.h),
// beside the catalog. Versions are counted from 1.
//
//     Subscribe ->  the first message; it has no payload
//     <- Catalog    the answer to Subscribe
//     <- Failure    in place of the catalog: the reason why the rank does not serve the subscriber
//     <- News       the newest version of this rank; also each second, as a sign of life
//     Want ->       asks for the bytes that lead from version `base` (0: the subscriber has none)
//                   to `version`. The rank answers once it has that version. A later Want takes the
//                   place of one that was not answered
//     <- Version    the answer; `bytes` bytes follow that are in no frame
//     <- Gone       the rank no longer has the version asked for: the subscriber asks for another
//     Have ->       the subscriber's version is complete
//     <- Goodbye    the rank has ended its part
//
// If `base` is 0, the bytes after Version are a whole copy: for each block of words its CRC32C (4
// bytes), then its words. Otherwise they are the records base + 1 .. version: for each record its
// blocks in order, as the delta codec writes them. `sum` is the CRC32C over the CRC32C values of
// all blocks of the new words.
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

// The version that was asked for and is gone, and the rank's newest. A subscriber may have asked
// for another version meanwhile, to which this is no answer.
struct Gone {
  uint64_t version = 0, newest = 0;
};

Bytes encode(const Want& want);
Bytes encode(const Gone& gone);
Bytes encode(const VersionHead& head);
Bytes encode_version(uint64_t version);  // the payload of News and Have
// Fails with FSCCL_ERR_PROTOCOL if the base is not older than the version.
Result<Want> decode_want(ByteView payload);
// Fails with FSCCL_ERR_PROTOCOL if the base is not older than the version, or if there are more
// bytes than the answer can have for `words` words.
Result<VersionHead> decode_version_head(ByteView payload, uint64_t words);
// Fails with FSCCL_ERR_PROTOCOL if the version is not older than the newest.
Result<Gone> decode_gone(ByteView payload);
// `message` is the name of the message, for an error.
Result<uint64_t> decode_version(ByteView payload, const char* message);

// Return the bytes of a whole copy, and the most bytes that a rank sends as records. If the records
// are longer, the rank sends a whole copy instead, or Gone if the version is not its newest.
uint64_t whole_bytes(uint64_t words);
uint64_t most_record_bytes(uint64_t words);

}  // namespace fsccl::publish
