// Bytes coded by how often each occurs in the range: range asymmetric numeral systems (rANS; J.
// Duda, arXiv 1311.2540) with 32 states side by side, of which symbol k uses state k mod 32 (F.
// Giesen, arXiv 1402.3392). States lie in [2^15, 2^31), frequencies are 12-bit, and a state that
// leaves its range moves 16 bits to or from the stream, so that all states of a vector do so at
// once.
//
// A section is: a bitmap of 32 bytes of the symbols that occur; of each, its frequency less one, as
// 7 bits, or as 7 bits with the top bit set and then 8 more; the 16-bit words, which are read from
// the last to the first; the 32 states, 4 bytes each. Numbers are little endian. A decoder checks
// everything: frequencies add up to 4,096, the words are used up, and the states end where the
// encoder began.
//
// The bytes do not depend on the processor's instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fsccl {

inline constexpr size_t kRansStates = 32;
// Whole rounds of all states: what `count` bytes need room for on either side.
constexpr size_t rans_room(size_t count) {
  return (count + kRansStates - 1) / kRansStates * kRansStates;
}
// Room that rans_encode needs: the table, a word for each symbol, the states, and a vector that is
// stored past the last word.
constexpr size_t rans_bound(size_t count) {
  return 32 + 2 * 256 + 2 * rans_room(count) + 4 * kRansStates + 64;
}

// Codes `count` > 0 bytes into `out`, and returns how many bytes that took. `bytes` can be read,
// and is written, up to rans_room(count): what is there beyond `count` is overwritten with what
// costs least.
size_t rans_encode(uint8_t* bytes, size_t count, uint8_t* out);

// `count` > 0 bytes out of a section of `size` bytes. `out` has room for rans_room(count). False:
// the section is damaged; what `out` holds is then unspecified. Nothing beyond `in + size` is read.
bool rans_decode(const uint8_t* in, size_t size, uint8_t* out, size_t count);

}  // namespace fsccl
