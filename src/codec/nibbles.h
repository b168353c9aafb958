// Differences of 16-bit floating-point words as nibbles. A word's bits are mapped to an integer
// that grows with the value it stands for: the sign bit is inverted for positive words, all bits
// for negative ones. The map is one to one over all 65,536 words, NaNs, infinities and both zeros
// included, and the difference of two such integers is taken modulo 65,536. So every pair of words
// has a difference, in units in the last place, and the difference gives the word back exactly.
//
// A difference d is mapped to z = 2d for d >= 0 and -2d - 1 for d < 0 (zigzag). z < 15 is one
// nibble. 15 is an escape: a byte z - 15 follows elsewhere, or the byte 255 and then z itself as 16
// bits. Words are taken in groups of 64: byte j of a group holds word j in its low half and word j
// + 32 in its high half. A last group that is not full counts as filled with words that do not
// differ. Escapes are in the order of the words.
//
// The bytes do not depend on the processor's instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fsccl {

inline constexpr size_t kNibbleGroup = 64;  // words
// Bytes of nibbles for `words` words.
constexpr size_t nibble_bytes(size_t words) {
  return (words + kNibbleGroup - 1) / kNibbleGroup * (kNibbleGroup / 2);
}

// The numbers of escapes.
struct Escapes {
  size_t bytes = 0;   // words with z >= 15
  size_t longs = 0;   // words with z >= 15 + 255, which `bytes` counts too
  bool same = false;  // no word differs
};

// Writes the differences of `words` from `previous`, which have `count` words each. `nibbles` has
// room for nibble_bytes(count) bytes, `bytes` and `longs` for `count` elements each. The ranges
// must not overlap.
Escapes split_nibbles(const uint16_t* words, const uint16_t* previous, size_t count,
                      uint8_t* nibbles, uint8_t* bytes, uint16_t* longs);

// Adds differences to `words`, which become the new words. Returns false if the nibbles have more
// or fewer escapes than `escapes` says; the contents of `words` are then unspecified. Regardless of
// what the ranges contain, nothing beyond them is read. `longs` need not be aligned.
bool join_nibbles(uint16_t* words, size_t count, const uint8_t* nibbles, const uint8_t* bytes,
                  const uint8_t* longs, const Escapes& escapes);

}  // namespace fsccl
