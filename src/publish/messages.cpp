#include "publish/messages.h"

#include "codec/delta.h"
#include "wire/frame.h"

namespace fsccl::publish {

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
  ByteReader reader(payload);
  Want want;
  want.base = reader.get<uint64_t>();
  want.version = reader.get<uint64_t>();
  if (!reader.finished() || want.base >= want.version) return bad_payload("Want");
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
  ByteReader reader(payload);
  Gone gone;
  gone.version = reader.get<uint64_t>();
  gone.newest = reader.get<uint64_t>();
  if (!reader.finished() || gone.version >= gone.newest) return bad_payload("Gone");
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
