#include "wire/frame.h"

#include <algorithm>

namespace fsccl {

Status bad_payload(const char* what) { return fail(FSCCL_ERR_PROTOCOL, "a malformed {} message arrived", what); }

Bytes encode_frame(FrameType type, ByteView payload) {
  ByteWriter writer(kFrameHeaderBytes + payload.size());
  writer.put(kFrameMagic).put(static_cast<uint16_t>(type)).put(uint16_t{0}).put(static_cast<uint32_t>(payload.size()));
  writer.put_raw(payload.data(), payload.size());
  return writer.take();
}

Result<FrameHeader> decode_header(ByteView bytes, size_t max_payload_bytes) {
  if (bytes.size() < kFrameHeaderBytes) return bad_payload("header");
  ByteReader reader(bytes.first(kFrameHeaderBytes));
  if (reader.get<uint32_t>() != kFrameMagic) return fail(FSCCL_ERR_PROTOCOL, "the other side does not speak FSCCL's protocol");
  FrameHeader header;
  header.type = static_cast<FrameType>(reader.get<uint16_t>());
  const auto zero = reader.get<uint16_t>();
  header.payload_bytes = reader.get<uint32_t>();
  if (zero != 0) return bad_payload("header");
  if (header.payload_bytes > max_payload_bytes)
    return fail(FSCCL_ERR_PROTOCOL, "a message of {} bytes arrived where {} are allowed", header.payload_bytes, max_payload_bytes);
  return header;
}

Bytes encode(const Failure& failure) {
  ByteWriter writer;
  writer.put(static_cast<int32_t>(failure.code)).put(failure.rank);
  writer.put_raw(failure.text.data(), std::min(failure.text.size(), kMaxFailureTextBytes));
  return writer.take();
}

Result<Failure> decode_failure(ByteView payload) {
  ByteReader reader(payload);
  Failure failure;
  const auto code = reader.get<int32_t>();
  failure.rank = reader.get<int32_t>();
  const ByteView text = reader.rest();
  if (!reader.finished() || text.size() > kMaxFailureTextBytes) return bad_payload("Failure");
  failure.code = code < 0 && code >= FSCCL_ERR_INTERNAL ? static_cast<fsccl_status_t>(code) : FSCCL_ERR_PROTOCOL;
  failure.rank = std::max(failure.rank, -1);
  failure.text.assign(text.begin(), text.end());
  for (char& letter : failure.text)
    if (letter < ' ' || letter > '~') letter = '?';
  return failure;
}

Status to_status(const Failure& failure) {
  Error error;
  error.code = failure.code;
  error.text = failure.text;
  error.peer = failure.rank;
  return Status(std::move(error));
}

Failure to_failure(const Status& status) { return {status.error().code, status.error().peer, status.text()}; }

}  // namespace fsccl
