// The variants of the passes over memory, in one table: how the same bytes are stored, how many
// pages are walked side by side, and how far ahead of a pass its sources are fetched. Which variant
// is fastest differs from processor to processor, so it is measured (race.h), never assumed. All
// variants of a pass give the same bits.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"

namespace fsccl {

// A pass is *hot* if its working set stays in the caches. The passes with the suffix `_past` are
// for working sets that do not fit the caches; Stores::streaming asks for them.
enum class Pass : uint8_t {
  copy,
  copy_past,
  cast,
  cast_past,
  reduce,
  reduce_past,
  reduce_norm,
  reduce_norm_past
};
inline constexpr size_t kPasses = 8;
inline constexpr std::array<std::string_view, kPasses> kPassNames{
    "copy",   "copy_past",   "cast",        "cast_past",
    "reduce", "reduce_past", "reduce_norm", "reduce_norm_past"};

struct Variant {
  // With `demote`, a line that is complete moves out of the core's own caches into the shared
  // cache, where other cores find it sooner. With `write_back`, a complete line is written to
  // memory and stays in the cache.
  enum class Store : uint8_t { plain, nontemporal, demote, write_back };
  enum class Body : uint8_t { lines, memcpy, movsb };  // casts and reduces have only `lines`

  Store store = Store::plain;
  Body body = Body::lines;
  uint8_t pages = 1;   // pages that are walked side by side, a line of each in turn
  uint16_t ahead = 0;  // bytes by which sources are prefetched; 0: by the processor alone
};

// One variant on one instruction set: the index of a row of the table, and an index into
// instruction_sets().
struct Chosen {
  uint8_t variant = 0, set = 0;

  bool operator==(const Chosen&) const = default;
};
using KernelChoice = std::array<Chosen, kPasses>;

// The names of the instruction sets that this build and this processor have, the best one first.
std::span<const char* const> instruction_sets();

// Returns the variants of a pass that this processor and this build can run; the first is the
// default.
std::vector<Chosen> usable_variants(Pass pass);
bool usable(Pass pass, Chosen chosen);
// Returns the variants that do best overall if nothing was measured.
KernelChoice default_kernels();

// A name is, for example, "nt*4+16K@avx3": the stores, the pages side by side if more than one, the
// bytes fetched ahead if any, and the instruction set. find_variant() returns nothing if the name
// is unknown, or if the variant is not usable for the pass here.
std::string variant_name(Chosen chosen);
std::optional<Chosen> find_variant(Pass pass, std::string_view name);
std::optional<Pass> find_pass(std::string_view name);

// Makes every later call of this process take these variants; the default replaces variants that
// are not usable here. Any thread may call it at any time.
void use_kernels(const KernelChoice& choice);
KernelChoice kernels_in_use();

// These carry out a pass with the given variant instead of the one in use. The variant must be
// usable() for the hot or the `_past` form of the pass. They end with a store fence if the variant
// needs one. cast_as() and reduce_as() return false for types that they do not serve; for cast_as()
// these include equal types.
void copy_as(Chosen chosen, void* dst, const void* src, size_t bytes);
bool cast_as(Chosen chosen, void* dst, fsccl_dtype_t to, const void* src, fsccl_dtype_t from,
             size_t count);
bool reduce_as(Chosen chosen, const Reduce& args);

namespace variants {
// A row of the table. `passes` has a bit for each pass that the variant serves.
struct Row {
  const char* name;
  Variant variant;
  uint16_t passes;
};
const Row& row(size_t index);
size_t rows();
}  // namespace variants

}  // namespace fsccl
