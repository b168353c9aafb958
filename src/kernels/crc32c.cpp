// The instruction can begin each cycle, but its result takes three cycles. Therefore the checksums
// of three runs of bytes are computed side by side and then joined. Checksums are linear: the state
// of one run, moved past the bytes of the next, is its product with a matrix of bits, which is kept
// as a table for each byte of the state.
#include "kernels/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace fsccl {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kPolynomial = 0x82f6'3b78;           // reflected
constexpr size_t kLongBytes = 4096, kShortBytes = 256;  // bytes of each of the three runs

using Table = std::array<std::array<uint32_t, 256>, 4>;  // [byte of the state][its value]
using Matrix = std::array<uint32_t, 32>;  // the value that each bit of the state becomes

constexpr uint32_t product(const Matrix& matrix, uint32_t state) {
  uint32_t sum = 0;
  for (size_t bit = 0; state; bit++, state >>= 1)
    if (state & 1) sum ^= matrix[bit];
  return sum;
}

// Returns the table that maps a state to the state after `bytes` zero bytes. `bytes` must be a
// power of two.
constexpr Table behind_zeros(size_t bytes) {
  Matrix matrix{};  // maps a state to the state after one zero bit
  matrix[0] = kPolynomial;
  for (size_t bit = 1; bit < 32; bit++) matrix[bit] = uint32_t{1} << (bit - 1);
  for (size_t bits = 1; bits < 8 * bytes; bits *= 2) {
    Matrix squared{};
    for (size_t bit = 0; bit < 32; bit++) squared[bit] = product(matrix, matrix[bit]);
    matrix = squared;
  }
  Table table{};
  for (size_t byte = 0; byte < 4; byte++)
    for (uint32_t value = 0; value < 256; value++)
      table[byte][value] = product(matrix, value << (8 * byte));
  return table;
}

constexpr Table kBehindLong = behind_zeros(kLongBytes), kBehindShort = behind_zeros(kShortBytes);

// The tables that take eight bytes at once. Table [k] is for a byte that k other bytes follow.
constexpr std::array<std::array<uint32_t, 256>, 8> make_slices() {
  std::array<std::array<uint32_t, 256>, 8> slices{};
  const Table one = behind_zeros(1);
  slices[0] = one[0];
  for (size_t k = 1; k < 8; k++)
    for (size_t value = 0; value < 256; value++)
      slices[k][value] = slices[k - 1][value] >> 8 ^ slices[0][slices[k - 1][value] & 255];
  return slices;
}
constexpr auto kSlices = make_slices();

inline uint64_t word_at(const uint8_t* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

inline uint32_t shifted(const Table& table, uint32_t state) {
  return table[0][state & 255] ^ table[1][state >> 8 & 255] ^ table[2][state >> 16 & 255] ^
         table[3][state >> 24];
}

// These use the processor's instructions by inline assembly, so that the compiler need not be
// allowed to use them elsewhere.
#if defined(__x86_64__)
inline void add_word(uint64_t& state, uint64_t word) {
  asm("crc32q %1, %0" : "+r"(state) : "rm"(word));
}
inline void add_byte(uint64_t& state, uint8_t byte) {
  asm("crc32b %1, %0" : "+r"(state) : "rm"(byte));
}
bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__)
inline void add_word(uint64_t& state, uint64_t word) {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(state) : "r"(word));
}
inline void add_byte(uint64_t& state, uint8_t byte) {
  asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(state) : "r"(uint32_t{byte}));
}
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
inline void add_word(uint64_t&, uint64_t) {}
inline void add_byte(uint64_t&, uint8_t) {}
bool has_instruction() { return false; }
#endif

// Adds three runs of `run` bytes at a time, as long as 3 * `run` bytes are left.
void add_runs(uint64_t& state, const uint8_t*& at, size_t& bytes, size_t run, const Table& behind) {
  for (; bytes >= 3 * run; at += 3 * run, bytes -= 3 * run) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < run; i += sizeof(uint64_t)) {
      add_word(state, word_at(at + i));
      add_word(second, word_at(at + run + i));
      add_word(third, word_at(at + 2 * run + i));
    }
    state = shifted(behind, static_cast<uint32_t>(state)) ^ second;
    state = shifted(behind, static_cast<uint32_t>(state)) ^ third;
  }
}

uint32_t by_instruction(const void* data, size_t bytes, uint32_t before) {
  const auto* at = static_cast<const uint8_t*>(data);
  uint64_t state = ~before;
  add_runs(state, at, bytes, kLongBytes, kBehindLong);
  add_runs(state, at, bytes, kShortBytes, kBehindShort);
  for (; bytes >= sizeof(uint64_t); at += sizeof(uint64_t), bytes -= sizeof(uint64_t))
    add_word(state, word_at(at));
  for (; bytes; at++, bytes--) add_byte(state, *at);
  return ~static_cast<uint32_t>(state);
}

}  // namespace

uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t before) {
  const auto* at = static_cast<const uint8_t*>(data);
  uint32_t state = ~before;
  for (; bytes >= sizeof(uint64_t); at += sizeof(uint64_t), bytes -= sizeof(uint64_t)) {
    const uint64_t word = word_at(at) ^ state;
    state = 0;
    for (size_t k = 0; k < 8; k++) state ^= kSlices[7 - k][word >> 8 * k & 255];
  }
  for (; bytes; at++, bytes--) state = state >> 8 ^ kSlices[0][(state ^ *at) & 255];
  return ~state;
}

bool crc32c_by_instruction() {
  static const bool has = has_instruction();
  return has;
}

uint32_t crc32c(const void* data, size_t bytes, uint32_t before) {
  return crc32c_by_instruction() ? by_instruction(data, bytes, before)
                                 : crc32c_portable(data, bytes, before);
}

}  // namespace fsccl
