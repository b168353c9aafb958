#include "wire/frame.h"

#include <algorithm>
#include <array>

#include "wire/told.h"

namespace fsccl {
namespace {

constexpr size_t kAtOnce = 8;  // bytes
using ChecksumTables = std::array<std::array<uint16_t, 256>, kAtOnce>;

// [k][b]: what byte b adds to a checksum when k more bytes follow.
constexpr ChecksumTables make_checksum_tables() {
  ChecksumTables tables{};
  for (size_t byte = 0; byte < 256; ++byte) {
    auto sum = static_cast<uint16_t>(byte << 8);
    for (size_t k = 0; k < kAtOnce; ++k) {
      for (int bit = 0; bit < 8; ++bit)
        sum = static_cast<uint16_t>(sum << 1 ^ ((sum & 0x8000) != 0 ? 0x1021 : 0));
      tables[k][byte] = sum;
    }
  }
  return tables;
}
constexpr ChecksumTables kChecksumTables = make_checksum_tables();

uint16_t add_to_checksum(uint16_t sum, ByteView bytes) {
  size_t i = 0;
  for (; i + kAtOnce <= bytes.size(); i += kAtOnce) {
    uint16_t next =
        kChecksumTables[7][bytes[i] ^ sum >> 8] ^ kChecksumTables[6][bytes[i + 1] ^ (sum & 0xff)];
    for (size_t k = 2; k < kAtOnce; ++k) next ^= kChecksumTables[kAtOnce - 1 - k][bytes[i + k]];
    sum = next;
  }
  for (; i < bytes.size(); ++i)
    sum = static_cast<uint16_t>(sum << 8 ^ kChecksumTables[0][bytes[i] ^ sum >> 8]);
  return sum;
}

uint16_t frame_checksum(FrameType type, ByteView payload) {
  const Bytes head = ByteWriter()
                         .put(static_cast<uint16_t>(type))
                         .put(static_cast<uint32_t>(payload.size()))
                         .take();
  return add_to_checksum(add_to_checksum(0xffff, head), payload);
}

}  // namespace

Status bad_payload(const char* what) {
  return fail(FSCCL_ERR_PROTOCOL, "a malformed {} message arrived", what);
}

Bytes encode_frame(FrameType type, ByteView payload) {
  ByteWriter writer(kFrameHeaderBytes + payload.size());
  writer.put(kFrameMagic)
      .put(static_cast<uint16_t>(type))
      .put(frame_checksum(type, payload))
      .put(static_cast<uint32_t>(payload.size()));
  writer.put_raw(payload.data(), payload.size());
  return writer.take();
}

Result<FrameHeader> decode_header(ByteView bytes, size_t max_payload_bytes) {
  if (bytes.size() < kFrameHeaderBytes) return bad_payload("header");
  ByteReader reader(bytes.first(kFrameHeaderBytes));
  if (reader.get<uint32_t>() != kFrameMagic)
    return fail(FSCCL_ERR_PROTOCOL,
                "the other side does not speak FSCCL's protocol: if another program has that port, "
                "give the job another one");
  FrameHeader header;
  header.type = static_cast<FrameType>(reader.get<uint16_t>());
  header.sum = reader.get<uint16_t>();
  header.payload_bytes = reader.get<uint32_t>();
  if (header.payload_bytes > max_payload_bytes)
    return fail(FSCCL_ERR_PROTOCOL, "a message of {} bytes arrived where {} are allowed",
                header.payload_bytes, max_payload_bytes);
  return header;
}

Status check_payload(const FrameHeader& header, ByteView payload) {
  if (frame_checksum(header.type, payload) == header.sum) return success();
  return fail(FSCCL_ERR_PROTOCOL,
              "a message arrived otherwise than it was sent: the network between the two hosts, or "
              "the memory of one, is faulty");
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
  failure.code = told_code(code);
  failure.rank = std::max(failure.rank, -1);
  failure.text = told_text({reinterpret_cast<const char*>(text.data()), text.size()});
  return failure;
}

Status to_status(const Failure& failure) {
  Error error;
  error.code = failure.code;
  error.text = failure.text;
  error.peer = failure.rank;
  return Status(std::move(error));
}

Failure to_failure(const Status& status) {
  return {status.error().code, status.error().peer, status.text()};
}

}  // namespace fsccl
