// The table of variants. A variant is in the table because it was the fastest on some processor, or
// because the maker of a processor writes such loops so. Variants that were never the fastest are
// left out, such as several pages side by side in a reduce, where each source is already a stream
// by itself. The order of the rows must stay the same, because the ranks of one host tell each
// other their choice by the indices of rows.
#include "kernels/variants.h"

#include <algorithm>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fsccl {
namespace {

using Store = Variant::Store;
using Body = Variant::Body;

constexpr uint16_t bits(std::initializer_list<Pass> passes) {
  uint16_t all = 0;
  for (const Pass pass : passes) all |= static_cast<uint16_t>(1u << static_cast<unsigned>(pass));
  return all;
}
constexpr uint16_t kReducesPast = bits({Pass::reduce_past, Pass::reduce_norm_past}),
                   kHot = bits({Pass::copy, Pass::cast, Pass::reduce, Pass::reduce_norm}),
                   kMovesPast = bits({Pass::copy_past, Pass::cast_past}),
                   kPast = kMovesPast | kReducesPast, kCopies = bits({Pass::copy, Pass::copy_past});

constexpr std::array kRows{
    variants::Row{"plain", {}, kHot | kPast},
    variants::Row{"nt", {Store::nontemporal}, kPast},
    variants::Row{"memcpy", {Store::plain, Body::memcpy}, kCopies},
    variants::Row{"movsb", {Store::plain, Body::movsb}, kCopies},
    variants::Row{"nt*2", {Store::nontemporal, Body::lines, 2}, kMovesPast},
    variants::Row{"nt*4", {Store::nontemporal, Body::lines, 4}, kMovesPast},
    variants::Row{"nt*4+16K", {Store::nontemporal, Body::lines, 4, 16384}, kMovesPast},
    variants::Row{"nt+512", {Store::nontemporal, Body::lines, 1, 512}, kPast},
    variants::Row{"nt+1K", {Store::nontemporal, Body::lines, 1, 1024}, kPast},
    variants::Row{"nt+2K", {Store::nontemporal, Body::lines, 1, 2048}, kPast},
    variants::Row{"plain*4", {Store::plain, Body::lines, 4}, kMovesPast},
    variants::Row{"plain+1K", {Store::plain, Body::lines, 1, 1024}, kPast | kHot},
    variants::Row{"demote", {Store::demote}, kCopies},
    variants::Row{"write_back", {Store::write_back}, bits({Pass::copy_past})},
};

// Processors without the instruction of `demote` execute it as a no-op. They must not execute that
// of `write_back`.
bool can_write_back() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 24 & 1) != 0;
#else
  return false;
#endif
}

bool runs_here(const Variant& variant) {
#if defined(__x86_64__)
  static const bool writes_back = can_write_back();
  return variant.store != Store::write_back || writes_back;
#else
  return variant.body != Body::movsb && variant.store < Store::demote;
#endif
}

bool with_instructions(const Variant& variant) { return variant.body == Body::lines; }

// The contenders are the best instruction set, and AVX2 if the best is AVX-512, for which some
// processors slow down.
bool contends(size_t set) {
  return set == 0 || instruction_sets()[set] == std::string_view("avx2");
}

uint8_t row_named(std::string_view name) {
  const auto* found = std::find_if(kRows.begin(), kRows.end(),
                                   [&](const variants::Row& row) { return name == row.name; });
  return static_cast<uint8_t>(found - kRows.begin());
}

Chosen default_of(Pass pass) {
  const bool past = static_cast<unsigned>(pass) % 2 == 1;
  return {row_named(pass == Pass::copy ? "memcpy" : past ? "nt" : "plain"), 0};
}

}  // namespace

const variants::Row& variants::row(size_t index) { return kRows[index]; }
size_t variants::rows() { return kRows.size(); }

bool usable(Pass pass, Chosen chosen) {
  if (chosen.variant >= kRows.size() || chosen.set >= instruction_sets().size()) return false;
  const variants::Row& row = kRows[chosen.variant];
  return (row.passes >> static_cast<unsigned>(pass) & 1) != 0 && runs_here(row.variant) &&
         (with_instructions(row.variant) ? contends(chosen.set) : chosen.set == 0);
}

std::vector<Chosen> usable_variants(Pass pass) {
  std::vector<Chosen> all{default_of(pass)};
  for (uint8_t set = 0; set < instruction_sets().size(); set++)
    for (uint8_t variant = 0; variant < kRows.size(); variant++)
      if (const Chosen one{variant, set}; usable(pass, one) && one != all.front())
        all.push_back(one);
  return all;
}

KernelChoice default_kernels() {
  KernelChoice choice;
  for (size_t pass = 0; pass < kPasses; pass++) choice[pass] = default_of(Pass(pass));
  return choice;
}

std::string variant_name(Chosen chosen) {
  if (chosen.variant >= kRows.size() || chosen.set >= instruction_sets().size()) return "unknown";
  const variants::Row& row = kRows[chosen.variant];
  return with_instructions(row.variant)
             ? std::string(row.name) + '@' + instruction_sets()[chosen.set]
             : row.name;
}

std::optional<Chosen> find_variant(Pass pass, std::string_view name) {
  for (const Chosen one : usable_variants(pass))
    if (variant_name(one) == name) return one;
  return std::nullopt;
}

std::optional<Pass> find_pass(std::string_view name) {
  const auto* found = std::find(kPassNames.begin(), kPassNames.end(), name);
  if (found == kPassNames.end()) return std::nullopt;
  return Pass(found - kPassNames.begin());
}

}  // namespace fsccl
