#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/rans.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "codec/rans.h"
#include "codec/rans_table.h"
#include "kernels/targets.h"
// clang-format on
#include <array>
#include <cstring>

#ifndef FSCCL_CODEC_RANS_SHARED
#define FSCCL_CODEC_RANS_SHARED
namespace fsccl {
namespace {
// Indexed by [mask of 8 lanes][lane]: how many lanes below this one are set in the mask.
constexpr std::array<std::array<uint8_t, 8>, 256> lanes_below() {
  std::array<std::array<uint8_t, 8>, 256> table{};
  for (unsigned mask = 0; mask < 256; mask++)
    for (unsigned lane = 1; lane < 8; lane++)
      table[mask][lane] = static_cast<uint8_t>(table[mask][lane - 1] + (mask >> (lane - 1) & 1));
  return table;
}
alignas(64) constexpr auto kLanesBelow = lanes_below();

struct Encoding {
  alignas(64)
      std::array<uint32_t, 256> places;  // frequency, and from bit 16 on the sum of those before
  alignas(64) std::array<float, 256> inverses;  // 1 / frequency
};
// Indexed by a state's low 12 bits: the symbol, from bit 8 on its frequency, and from bit 20 on the
// position in the symbol's range.
using Decoding = std::array<uint32_t, kRansScale>;
}  // namespace
}  // namespace fsccl
#endif

HWY_BEFORE_NAMESPACE();
namespace fsccl {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using States = hn::CappedTag<uint32_t, 8>;
using SignedStates = hn::RebindToSigned<States>;
using Reals = hn::RebindToFloat<States>;
using Bytes = hn::Rebind<uint8_t, States>;
using Words = hn::Rebind<uint16_t, States>;
using Vector = hn::Vec<States>;

// Encodes one symbol in each of some states. The words that leave the states go to `words`, which
// advances.
HWY_INLINE Vector encode_some(Vector x, const uint8_t* symbols, const Encoding& table,
                              uint8_t*& words) {
  const States d;
  const SignedStates di;
  const auto symbol = hn::BitCast(di, hn::PromoteTo(d, hn::LoadU(Bytes(), symbols)));
  const Vector place = hn::GatherIndex(d, table.places.data(), symbol);
  const Vector frequency = hn::And(place, hn::Set(d, 0xffff)), before = hn::ShiftRight<16>(place);
  const auto most = hn::BitCast(di, hn::Sub(hn::ShiftLeft<19>(frequency), hn::Set(d, 1)));
  const auto full = hn::RebindMask(d, hn::Gt(hn::BitCast(di, x), most));
  const Vector given = hn::Compress(hn::And(x, hn::Set(d, 0xffff)), full);
  hn::StoreU(hn::DemoteTo(Words(), hn::BitCast(di, given)), Words(),
             reinterpret_cast<uint16_t*>(words));
  words += 2 * hn::CountTrue(d, full);
  x = hn::IfThenElse(full, hn::ShiftRight<16>(x), x);
  // Computes x / frequency. The product of floats is off by less than 1, and so is its integer
  // part; the remainder says in which direction.
  const auto inverse = hn::GatherIndex(Reals(), table.inverses.data(), symbol);
  const auto estimate =
      hn::ConvertTo(di, hn::Mul(hn::ConvertTo(Reals(), hn::BitCast(di, x)), inverse));
  const auto divisor = hn::BitCast(di, frequency);
  auto quotient = estimate;
  auto rest = hn::Sub(hn::BitCast(di, x), hn::Mul(estimate, divisor));
  const auto low = hn::Lt(rest, hn::Zero(di));
  quotient = hn::Sub(quotient, hn::IfThenElseZero(low, hn::Set(di, 1)));
  rest = hn::Add(rest, hn::IfThenElseZero(low, divisor));
  const auto high = hn::Gt(rest, hn::Sub(divisor, hn::Set(di, 1)));
  quotient = hn::Add(quotient, hn::IfThenElseZero(high, hn::Set(di, 1)));
  rest = hn::Sub(rest, hn::IfThenElseZero(high, divisor));
  return hn::Add(hn::Add(hn::ShiftLeft<kRansBits>(hn::BitCast(d, quotient)), hn::BitCast(d, rest)),
                 before);
}

uint8_t* encode_here(const uint8_t* bytes, size_t rounds, const Encoding& table, uint8_t* words) {
  alignas(64) uint32_t states[kRansStates];
  std::fill_n(states, kRansStates, kRansLeast);
  const States d;
  const size_t lanes = hn::Lanes(d);
  static_assert(kRansStates % hn::MaxLanes(d) == 0);
  for (const uint8_t* at = bytes + rounds * kRansStates; at != bytes;) {
    at -= kRansStates;
    for (size_t k = 0; k < kRansStates; k += lanes)
      hn::Store(encode_some(hn::Load(d, states + k), at + k, table, words), d, states + k);
  }
  std::memcpy(words, states, sizeof states);
  return words + sizeof states;
}

// Decodes one symbol of each of some states. `words` moves back over the words that the states
// take.
HWY_INLINE Vector decode_some(Vector x, uint8_t* symbols, const Decoding& table,
                              const uint8_t*& words) {
  const States d;
  const SignedStates di;
  const auto low = hn::BitCast(di, hn::And(x, hn::Set(d, kRansScale - 1)));
  const Vector entry = hn::GatherIndex(d, table.data(), low);
  hn::StoreU(hn::DemoteTo(Bytes(), hn::BitCast(di, hn::And(entry, hn::Set(d, 0xff)))), Bytes(),
             symbols);
  const Vector frequency = hn::And(hn::ShiftRight<8>(entry), hn::Set(d, kRansScale - 1));
  x = hn::Add(hn::Mul(frequency, hn::ShiftRight<kRansBits>(x)), hn::ShiftRight<20>(entry));
  const auto wants = hn::RebindMask(d, hn::Lt(hn::BitCast(di, x), hn::Set(di, kRansLeast)));
  uint8_t bits[8] = {};
  hn::StoreMaskBits(d, wants, bits);
  words -= 2 * hn::CountTrue(d, wants);
  const Vector taken =
      hn::PromoteTo(d, hn::LoadU(Words(), reinterpret_cast<const uint16_t*>(words)));
  const Vector places = hn::PromoteTo(d, hn::LoadU(Bytes(), kLanesBelow[bits[0]].data()));
  const Vector spread = hn::TableLookupLanes(taken, hn::IndicesFromVec(d, places));
  return hn::IfThenElse(wants, hn::Or(hn::ShiftLeft<16>(x), spread), x);
}

// Decodes one round like decode_some(), and checks that the words suffice.
bool decode_last(uint32_t* states, uint8_t* symbols, const Decoding& table, const uint8_t* begin,
                 const uint8_t*& words) {
  for (size_t k = kRansStates; k-- > 0;) {
    uint32_t& x = states[k];
    const uint32_t entry = table[x & (kRansScale - 1)];
    symbols[k] = static_cast<uint8_t>(entry);
    x = (entry >> 8 & (kRansScale - 1)) * (x >> kRansBits) + (entry >> 20);
    if (x >= kRansLeast) continue;
    if (words - begin < 2) return false;
    words -= 2;
    uint16_t word;
    std::memcpy(&word, words, sizeof word);
    x = x << 16 | word;
  }
  return true;
}

bool decode_here(const uint8_t* begin, const uint8_t* words, const uint8_t* stored,
                 const Decoding& table, uint8_t* out, size_t rounds) {
  alignas(64) uint32_t states[kRansStates];
  std::memcpy(states, stored, sizeof states);
  const States d;
  const size_t lanes = hn::Lanes(d);
  size_t round = 0;
  for (; round < rounds && words - begin >= static_cast<ptrdiff_t>(2 * kRansStates);
       round++, out += kRansStates)
    for (size_t k = kRansStates; k > 0;) {
      k -= lanes;
      hn::Store(decode_some(hn::Load(d, states + k), out + k, table, words), d, states + k);
    }
  for (; round < rounds; round++, out += kRansStates)
    if (!decode_last(states, out, table, begin, words)) return false;
  return words == begin &&
         std::all_of(states, states + kRansStates, [](uint32_t x) { return x == kRansLeast; });
}

}  // namespace HWY_NAMESPACE
}  // namespace fsccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsccl {
FSCCL_COMPILED_FOR_TARGETS(encode_here)
FSCCL_COMPILED_FOR_TARGETS(decode_here)

size_t rans_encode(uint8_t* bytes, size_t count, uint8_t* out) {
  const std::array<uint32_t, 256> counts = count_bytes_of(bytes, count);
  const RansFrequencies frequencies = rans_frequencies(counts, count);
  const auto most = std::max_element(frequencies.begin(), frequencies.end()) - frequencies.begin();
  std::fill(bytes + count, bytes + rans_room(count), static_cast<uint8_t>(most));
  Encoding table;
  uint32_t before = 0;
  for (size_t s = 0; s < 256; s++) {
    table.places[s] = frequencies[s] | before << 16;
    table.inverses[s] = frequencies[s] ? 1.0f / static_cast<float>(frequencies[s]) : 0.0f;
    before += frequencies[s];
  }
  uint8_t* const words = write_frequencies(frequencies, out);
  return static_cast<size_t>(
      encode_here_for(supported_targets())(bytes, rans_room(count) / kRansStates, table, words) -
      out);
}

bool rans_decode(const uint8_t* in, size_t size, uint8_t* out, size_t count) {
  RansFrequencies frequencies;
  const uint8_t* const begin = read_frequencies(in, in + size, &frequencies);
  constexpr size_t kStateBytes = kRansStates * sizeof(uint32_t);
  if (!begin || static_cast<size_t>(in + size - begin) < kStateBytes) return false;
  const uint8_t* const stored = in + size - kStateBytes;
  if ((stored - begin) % 2) return false;
  for (size_t k = 0; k < kRansStates; k++) {
    uint32_t state;
    std::memcpy(&state, stored + k * sizeof state, sizeof state);
    if (state < kRansLeast || state >= kRansLeast << 16) return false;
  }
  alignas(64) Decoding table;
  uint32_t at = 0;
  for (uint32_t s = 0; s < 256; s++)
    for (uint32_t k = 0; k < frequencies[s]; k++)
      table[at++] = s | uint32_t{frequencies[s]} << 8 | k << 20;
  return decode_here_for(supported_targets())(begin, stored, stored, table, out,
                                              rans_room(count) / kRansStates);
}
}  // namespace fsccl
#endif
