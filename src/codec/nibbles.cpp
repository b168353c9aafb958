#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/nibbles.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "codec/nibbles.h"
#include "kernels/targets.h"
// clang-format on
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace fsccl {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Words = hn::CappedTag<uint16_t, 32>;
using SignedWords = hn::RebindToSigned<Words>;
using Bytes = hn::Rebind<uint8_t, Words>;
using Vector = hn::Vec<Words>;

// Sets all bits of a negative word, and clears those of any other.
HWY_INLINE Vector sign_of(Vector v) {
  return hn::BitCast(Words(), hn::ShiftRight<15>(hn::BitCast(SignedWords(), v)));
}

HWY_INLINE Vector order_of(Vector word) {
  return hn::Xor(word, hn::Or(sign_of(word), hn::Set(Words(), 0x8000)));
}

HWY_INLINE Vector word_of(Vector order) {
  return hn::Xor(order, hn::Or(hn::Not(sign_of(order)), hn::Set(Words(), 0x8000)));
}

HWY_INLINE Vector zigzag(Vector word, Vector previous) {
  const Vector difference = hn::Sub(order_of(word), order_of(previous));
  return hn::Xor(hn::ShiftLeft<1>(difference), sign_of(difference));
}

HWY_INLINE Vector unzigzag(Vector z) {
  return hn::Xor(hn::ShiftRight<1>(z), hn::Sub(hn::Zero(Words()), hn::And(z, hn::Set(Words(), 1))));
}

// Bit j of the result says whether z[j] >= 15.
HWY_INLINE uint64_t escaped_bits(const uint16_t* z) {
  uint64_t bits = 0;
  if constexpr (hn::MaxLanes(Words()) < 8) {
    for (size_t j = 0; j < kNibbleGroup; ++j) bits |= uint64_t{z[j] >= 15} << j;
  } else {
    uint8_t stored[kNibbleGroup / 8 + 8] = {};
    const Vector limit = hn::Set(Words(), 14);
    for (size_t j = 0; j < kNibbleGroup; j += hn::Lanes(Words()))
      hn::StoreMaskBits(Words(), hn::Gt(hn::LoadU(Words(), z + j), limit), stored + j / 8);
    std::memcpy(&bits, stored, sizeof bits);
  }
  return bits;
}

// Splits one group. Bits in which a word differs are added to `any`.
HWY_INLINE void split_group(const uint16_t* words, const uint16_t* previous, uint8_t* nibbles,
                            uint8_t* bytes, uint16_t* longs, Escapes& found, Vector& any) {
  alignas(64) uint16_t z[kNibbleGroup];
  constexpr size_t kHalf = kNibbleGroup / 2;
  const Vector limit = hn::Set(Words(), 15);
  Vector most = hn::Zero(Words());
  for (size_t j = 0; j < kHalf; j += hn::Lanes(Words())) {
    const Vector low = zigzag(hn::LoadU(Words(), words + j), hn::LoadU(Words(), previous + j));
    const Vector high =
        zigzag(hn::LoadU(Words(), words + kHalf + j), hn::LoadU(Words(), previous + kHalf + j));
    most = hn::Max(most, hn::Max(low, high));
    hn::StoreU(low, Words(), z + j);
    hn::StoreU(high, Words(), z + kHalf + j);
    const Vector both = hn::Or(hn::Min(low, limit), hn::ShiftLeft<4>(hn::Min(high, limit)));
    hn::StoreU(hn::DemoteTo(Bytes(), hn::BitCast(SignedWords(), both)), Bytes(), nibbles + j);
  }
  any = hn::Or(any, most);
  if (hn::AllTrue(Words(), hn::Lt(most, limit))) return;
  for (uint64_t bits = escaped_bits(z); bits; bits &= bits - 1) {
    const unsigned beyond = z[__builtin_ctzll(bits)] - 15u;
    bytes[found.bytes++] = static_cast<uint8_t>(beyond < 255 ? beyond : 255);
    if (beyond >= 255) longs[found.longs++] = static_cast<uint16_t>(beyond + 15);
  }
}

Escapes split_here(const uint16_t* words, const uint16_t* previous, size_t count, uint8_t* nibbles,
                   uint8_t* bytes, uint16_t* longs) {
  Escapes found;
  Vector any = hn::Zero(Words());
  size_t at = 0;
  for (; at + kNibbleGroup <= count; at += kNibbleGroup, nibbles += kNibbleGroup / 2)
    split_group(words + at, previous + at, nibbles, bytes, longs, found, any);
  if (at < count) {
    uint16_t last[kNibbleGroup] = {}, before[kNibbleGroup] = {};
    std::memcpy(last, words + at, (count - at) * sizeof *words);
    std::memcpy(before, previous + at, (count - at) * sizeof *words);
    split_group(last, before, nibbles, bytes, longs, found, any);
  }
  found.same = hn::AllTrue(Words(), hn::Eq(any, hn::Zero(Words())));
  return found;
}

// The escapes that are not read yet.
struct Left {
  const uint8_t* bytes;
  const uint8_t* longs;
  size_t byte_count, long_count;
};

// Puts the escaped values of a group in their places.
HWY_INLINE bool restore_escapes(uint16_t* z, Left& left) {
  for (uint64_t bits = escaped_bits(z); bits; bits &= bits - 1) {
    if (left.byte_count == 0) return false;
    uint16_t value = static_cast<uint16_t>(15 + *left.bytes);
    left.byte_count--;
    if (*left.bytes++ == 255) {
      if (left.long_count == 0) return false;
      std::memcpy(&value, left.longs, sizeof value);
      left.long_count--;
      left.longs += sizeof value;
    }
    z[__builtin_ctzll(bits)] = value;
  }
  return true;
}

HWY_INLINE bool join_group(uint16_t* words, const uint8_t* nibbles, Left& left) {
  alignas(64) uint16_t z[kNibbleGroup];
  constexpr size_t kHalf = kNibbleGroup / 2;
  const Vector limit = hn::Set(Words(), 15);
  Vector most = hn::Zero(Words());
  for (size_t j = 0; j < kHalf; j += hn::Lanes(Words())) {
    const Vector both = hn::PromoteTo(Words(), hn::LoadU(Bytes(), nibbles + j));
    const Vector low = hn::And(both, limit), high = hn::ShiftRight<4>(both);
    most = hn::Max(most, hn::Max(low, high));
    hn::StoreU(low, Words(), z + j);
    hn::StoreU(high, Words(), z + kHalf + j);
  }
  if (!hn::AllTrue(Words(), hn::Lt(most, limit)) && !restore_escapes(z, left)) return false;
  for (size_t j = 0; j < kNibbleGroup; j += hn::Lanes(Words())) {
    const Vector before = order_of(hn::LoadU(Words(), words + j));
    hn::StoreU(word_of(hn::Add(before, unzigzag(hn::LoadU(Words(), z + j)))), Words(), words + j);
  }
  return true;
}

bool join_here(uint16_t* words, size_t count, const uint8_t* nibbles, const uint8_t* bytes,
               const uint8_t* longs, const Escapes& escapes) {
  Left left{bytes, longs, escapes.bytes, escapes.longs};
  size_t at = 0;
  for (; at + kNibbleGroup <= count; at += kNibbleGroup, nibbles += kNibbleGroup / 2)
    if (!join_group(words + at, nibbles, left)) return false;
  if (at < count) {
    uint16_t last[kNibbleGroup] = {};
    std::memcpy(last, words + at, (count - at) * sizeof *words);
    if (!join_group(last, nibbles, left)) return false;
    std::memcpy(words + at, last, (count - at) * sizeof *words);
  }
  return left.byte_count == 0 && left.long_count == 0;
}

}  // namespace HWY_NAMESPACE
}  // namespace fsccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsccl {
FSCCL_COMPILED_FOR_TARGETS(split_here)
FSCCL_COMPILED_FOR_TARGETS(join_here)

Escapes split_nibbles(const uint16_t* words, const uint16_t* previous, size_t count,
                      uint8_t* nibbles, uint8_t* bytes, uint16_t* longs) {
  return split_here_for(supported_targets())(words, previous, count, nibbles, bytes, longs);
}

bool join_nibbles(uint16_t* words, size_t count, const uint8_t* nibbles, const uint8_t* bytes,
                  const uint8_t* longs, const Escapes& escapes) {
  return join_here_for(supported_targets())(words, count, nibbles, bytes, longs, escapes);
}
}  // namespace fsccl
#endif
