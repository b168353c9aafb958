#include "publish/messages.h"

#include "codec/delta.h"
#include "wire/frame.h"

namespace fsccl::publish {
namespace {

// Reads a message of two versions, the first of which is the older one.
Status decode_two(ByteView payload, const char* message, uint64_t* older, uint64_t* newer) {
  ByteReader reader(payload);
  *older = reader.get<uint64_t>();
  *newer = reader.get<uint64_t>();
  return reader.finished() && *older < *newer ? success() : bad_payload(message);
}

}  // namespace

Bytes encode(const Want& want) { return ByteWriter().put(want.base).put(want.version).take(); }

Bytes encode(const Gone& gone) { return ByteWriter().put(gone.version).put(gone.newest).take(); }

Bytes encode(const VersionHead& head) {
  return ByteWriter()
      .put(head.base)
      .put(head.version)
      .put(head.label)
      .put(head.bytes)
      .put(head.sum)
      .take();
}

Bytes encode_version(uint64_t version) { return ByteWriter().put(version).take(); }

Result<Want> decode_want(ByteView payload) {
  Want want;
  FSCCL_TRY(decode_two(payload, "Want", &want.base, &want.version));
  return want;
}

Result<VersionHead> decode_version_head(ByteView payload, uint64_t words) {
  ByteReader reader(payload);
  VersionHead head;
  head.base = reader.get<uint64_t>();
  head.version = reader.get<uint64_t>();
  head.label = reader.get<uint64_t>();
  head.bytes = reader.get<uint64_t>();
  head.sum = reader.get<uint32_t>();
  if (!reader.finished() || head.base >= head.version) return bad_payload("Version");
  const bool fits =
      head.base == 0 ? head.bytes == whole_bytes(words) : head.bytes <= most_record_bytes(words);
  if (!fits) return bad_payload("Version");
  return head;
}

Result<Gone> decode_gone(ByteView payload) {
  Gone gone;
  FSCCL_TRY(decode_two(payload, "Gone", &gone.version, &gone.newest));
  return gone;
}

Result<uint64_t> decode_version(ByteView payload, const char* message) {
  ByteReader reader(payload);
  const auto version = reader.get<uint64_t>();
  if (!reader.finished()) return bad_payload(message);
  return version;
}

uint64_t whole_bytes(uint64_t words) {
  const uint64_t blocks = (words + kDeltaBlockWords - 1) / kDeltaBlockWords;
  return kChecksumBytes * blocks + 2 * words;
}

uint64_t most_record_bytes(uint64_t words) { return delta_bound(words); }

}  // namespace fsccl::publish
