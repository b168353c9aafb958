// The delta codec sends 16-bit words as differences from a copy of their previous values, without
// loss. Both ends hold the same previous words. The encoder works on blocks of kDeltaBlockWords
// words and chooses a form for each block:
//
//   same      no word differs: the header alone
//   nibbles   differences as nibbles with escapes (nibbles.h)
//   coded     the nibbles, two words a byte, and the escapes, each by their frequencies (rans.h)
//   plain     the words themselves, where that is no longer than the others
//
// Sizes. A block of n words of which e differ by more than a nibble holds, and f of these by more
// than a byte, takes as nibbles exactly kDeltaHeaderBytes + nibble_bytes(n) + e + 2 f bytes. No
// block takes more than kDeltaHeaderBytes + 2 n.
//
// A block carries the CRC32C of its new words, and the decoder compares it with the checksum of the
// words that it obtains from its own previous words. This detects a previous copy that differs from
// the encoder's, a damaged block and damaged memory. Everything in a block is checked before it is
// used.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace fsccl {

inline constexpr size_t kDeltaBlockWords = size_t{1} << 17;
inline constexpr size_t kDeltaHeaderBytes = 28;

enum class DeltaForm : uint8_t { nibbles, coded };  // the most that is tried
enum class DeltaKind : uint32_t { same, nibbles, coded, plain };

// The most bytes that a block of `words` words takes.
constexpr size_t delta_block_bound(size_t words) { return kDeltaHeaderBytes + 2 * words; }
// Writes a header that says that no block follows: decode_delta() reports it as damaged.
void write_no_delta(uint8_t* out);  // kDeltaHeaderBytes
// The most bytes that `words` words take in blocks.
constexpr size_t delta_bound(size_t words) {
  return (words + kDeltaBlockWords - 1) / kDeltaBlockWords * kDeltaHeaderBytes + 2 * words;
}
// The memory that one encoder or decoder needs for a block. Two threads must not use it at once.
struct DeltaScratch {
  DeltaScratch();
  ~DeltaScratch();
  DeltaScratch(const DeltaScratch&) = delete;
  DeltaScratch& operator=(const DeltaScratch&) = delete;

  struct Memory;
  const std::unique_ptr<Memory> memory;
};

struct DeltaWritten {
  size_t bytes = 0;  // the size of the block
  DeltaKind kind{};
  uint32_t sum = 0;  // CRC32C of the words
};

// Encodes 1 .. kDeltaBlockWords words into `out`, which has room for delta_block_bound(count)
// bytes, and copies the words to `previous`. The ranges must not overlap.
DeltaWritten encode_delta(const uint16_t* words, uint16_t* previous, size_t count, DeltaForm form,
                          uint8_t* out, DeltaScratch& scratch);

enum class DeltaResult : uint8_t {
  good,
  damaged,  // no block of so many words: a size, a table or a count is wrong
  stale,    // a block, but not of this previous copy: the sum differs
};
struct DeltaRead {
  DeltaResult result = DeltaResult::damaged;
  size_t bytes = 0;  // the size of the block, which lies within `size` bytes
  uint32_t sum = 0;
};

// Decodes a block of 1 .. kDeltaBlockWords words from at most `size` bytes into `words`, which
// holds the previous words. If the result is not good, the contents of `words` are unspecified.
DeltaRead decode_delta(const uint8_t* in, size_t size, uint16_t* words, size_t count,
                       DeltaScratch& scratch);

}  // namespace fsccl
