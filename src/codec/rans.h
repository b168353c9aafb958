// Codes bytes by the frequency of each value in the range, with range asymmetric numeral systems
// (rANS; J. Duda, arXiv 1311.2540). 32 states work side by side, and symbol k uses state k mod 32
// (F. Giesen, arXiv 1402.3392). States lie in [2^15, 2^31), and frequencies have 12 bits. A state
// that leaves its range moves 16 bits to or from the stream, so one such move always suffices and
// all states of a vector make it at once.
//
// A section consists of a bitmap of 32 bytes that says which symbols occur; for each of them its
// frequency minus one, as 7 bits, or as 7 bits with the top bit set and then 8 more; the 16-bit
// words, which are read from the last to the first; and the 32 states of 4 bytes each. Numbers are
// little endian. A decoder checks that the frequencies add up to 4,096, that all words are used,
// and that the states end where the encoder began.
//
// The bytes do not depend on the processor's instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fsccl {

inline constexpr size_t kRansStates = 32;
// The room for `count` bytes before or after coding: whole rounds of all states.
constexpr size_t rans_room(size_t count) {
  return (count + kRansStates - 1) / kRansStates * kRansStates;
}
// The room that rans_encode() needs for the table, a word for each symbol, the states, and a vector
// that it stores past the last word.
constexpr size_t rans_bound(size_t count) {
  return 32 + 2 * 256 + 2 * rans_room(count) + 4 * kRansStates + 64;
}

// Codes `count` > 0 bytes into `out` and returns the size of the section. `bytes` must be readable
// and writable up to rans_room(count): what lies beyond `count` is overwritten with the symbol that
// costs least.
size_t rans_encode(uint8_t* bytes, size_t count, uint8_t* out);

// Decodes `count` > 0 bytes from a section of `size` bytes. `out` has room for rans_room(count)
// bytes. Returns false if the section is damaged; the contents of `out` are then unspecified.
// Nothing beyond `in + size` is read.
bool rans_decode(const uint8_t* in, size_t size, uint8_t* out, size_t count);

}  // namespace fsccl
