#include "codec/delta.h"

#include <array>
#include <bit>
#include <cstring>

#include "codec/nibbles.h"
#include "codec/rans.h"
#include "kernels/crc32c.h"

namespace fsccl {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kLeastCoded = 1024;  // bytes: a table costs more than a shorter range can win

struct Header {
  uint32_t sum;
  DeltaKind kind;
  uint32_t payload;       // bytes behind the header
  uint32_t escapes;       // bytes
  uint32_t longs;         // words
  uint32_t nibble_bytes;  // coded: of the nibbles' section
  uint32_t escape_bytes;  // coded: of the escapes' section; 0: they are not coded
};
static_assert(sizeof(Header) == kDeltaHeaderBytes);

}  // namespace

struct DeltaScratch::Memory {
  alignas(64) std::array<uint8_t, rans_room(nibble_bytes(kDeltaBlockWords))> nibbles;
  alignas(64) std::array<uint8_t, rans_room(kDeltaBlockWords)> escapes;
  alignas(64) std::array<uint16_t, kDeltaBlockWords> longs;
  alignas(64) std::array<uint8_t, rans_bound(nibble_bytes(kDeltaBlockWords))> coded_nibbles;
  alignas(64) std::array<uint8_t, rans_bound(kDeltaBlockWords)> coded_escapes;
};

DeltaScratch::DeltaScratch() : memory(new Memory) {}
DeltaScratch::~DeltaScratch() = default;

void write_no_delta(uint8_t* out) { std::memset(out, 0xff, sizeof(Header)); }

namespace {

// The parts of a block, which may lie in different memory.
struct DeltaBlock {
  Header header{};
  const uint8_t* nibbles = nullptr;
  const uint8_t* escapes = nullptr;
  const uint8_t* longs = nullptr;

  size_t nibble_size(size_t words) const {
    return header.kind == DeltaKind::coded ? header.nibble_bytes : nibble_bytes(words);
  }
  size_t escape_size() const { return header.escape_bytes ? header.escape_bytes : header.escapes; }
  size_t payload(size_t words) const {
    return nibble_size(words) + escape_size() + 2 * size_t{header.longs};
  }

  // Codes the sections that become shorter by it.
  void code(size_t words, DeltaScratch::Memory& memory) {
    const size_t plain = nibble_bytes(words);
    const size_t section = rans_encode(memory.nibbles.data(), plain, memory.coded_nibbles.data());
    if (section >= plain) return;
    header.kind = DeltaKind::coded;
    header.nibble_bytes = static_cast<uint32_t>(section);
    nibbles = memory.coded_nibbles.data();
    if (header.escapes < kLeastCoded) return;
    const size_t coded =
        rans_encode(memory.escapes.data(), header.escapes, memory.coded_escapes.data());
    if (coded >= header.escapes) return;
    header.escape_bytes = static_cast<uint32_t>(coded);
    escapes = memory.coded_escapes.data();
  }
};

}  // namespace

DeltaWritten encode_delta(const uint16_t* words, uint16_t* previous, size_t count, DeltaForm form,
                          uint8_t* out, DeltaScratch& scratch) {
  DeltaScratch::Memory& memory = *scratch.memory;
  const size_t plain = count * sizeof *words;
  // Unchanged words are common, and memcmp() recognises them faster.
  Escapes found;
  found.same = std::memcmp(words, previous, plain) == 0;
  if (!found.same)
    found = split_nibbles(words, previous, count, memory.nibbles.data(), memory.escapes.data(),
                          memory.longs.data());
  DeltaBlock block;
  block.header.sum = crc32c(words, plain);
  block.header.kind = found.same ? DeltaKind::same : DeltaKind::nibbles;
  block.header.escapes = static_cast<uint32_t>(found.bytes);
  block.header.longs = static_cast<uint32_t>(found.longs);
  block.nibbles = memory.nibbles.data();
  block.escapes = memory.escapes.data();
  if (!found.same && form == DeltaForm::coded && nibble_bytes(count) >= kLeastCoded)
    block.code(count, memory);
  size_t payload = found.same ? 0 : block.payload(count);
  uint8_t* at = out + sizeof(Header);
  if (payload >= plain) {
    block.header = {block.header.sum, DeltaKind::plain, 0, 0, 0, 0, 0};
    payload = plain;
    std::memcpy(at, words, plain);
  } else if (!found.same) {
    std::memcpy(at, block.nibbles, block.nibble_size(count));
    at += block.nibble_size(count);
    std::memcpy(at, block.escapes, block.escape_size());
    at += block.escape_size();
    std::memcpy(at, memory.longs.data(), 2 * found.longs);
  }
  block.header.payload = static_cast<uint32_t>(payload);
  std::memcpy(out, &block.header, sizeof block.header);
  if (!found.same) std::memcpy(previous, words, plain);
  return {sizeof(Header) + payload, block.header.kind, block.header.sum};
}

namespace {

// Finds the nibbles and escapes of a block whose payload lies at `in`, and decodes those that are
// coded. Returns false if the block is damaged.
bool open_block(DeltaBlock& block, const uint8_t* in, size_t count, DeltaScratch::Memory& memory) {
  const Header& header = block.header;
  const bool coded = header.kind == DeltaKind::coded;
  if (header.escapes > count || header.longs > header.escapes) return false;
  if (!coded && (header.nibble_bytes || header.escape_bytes)) return false;
  if (block.payload(count) != header.payload) return false;
  block.nibbles = in;
  block.escapes = in + block.nibble_size(count);
  block.longs = block.escapes + block.escape_size();
  if (!coded) return true;
  if (!rans_decode(block.nibbles, header.nibble_bytes, memory.nibbles.data(), nibble_bytes(count)))
    return false;
  block.nibbles = memory.nibbles.data();
  if (!header.escape_bytes) return true;
  if (!header.escapes ||
      !rans_decode(block.escapes, header.escape_bytes, memory.escapes.data(), header.escapes))
    return false;
  block.escapes = memory.escapes.data();
  return true;
}

}  // namespace

DeltaRead decode_delta(const uint8_t* in, size_t size, uint16_t* words, size_t count,
                       DeltaScratch& scratch) {
  DeltaBlock block;
  const size_t plain = count * sizeof *words;
  if (count == 0 || count > kDeltaBlockWords || size < sizeof(Header)) return {};
  std::memcpy(&block.header, in, sizeof block.header);
  const Header& header = block.header;
  in += sizeof header;
  if (header.payload > size - sizeof header) return {};
  switch (header.kind) {
    case DeltaKind::same:
      if (header.payload) return {};
      break;
    case DeltaKind::plain:
      if (header.payload != plain) return {};
      std::memcpy(words, in, plain);
      break;
    case DeltaKind::nibbles:
    case DeltaKind::coded:
      if (!open_block(block, in, count, *scratch.memory)) return {};
      if (!join_nibbles(words, count, block.nibbles, block.escapes, block.longs,
                        {header.escapes, header.longs, false}))
        return {};
      break;
    default:
      return {};
  }
  const uint32_t sum = crc32c(words, plain);
  return {sum == header.sum ? DeltaResult::good : DeltaResult::stale,
          sizeof header + header.payload, sum};
}

}  // namespace fsccl
