#include "unit/unit_definition.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/hash.h"
#include "base/round_up.h"
#include "fsccl/codec.h"
#include "kernels/kernels.h"

namespace fsccl {
namespace {

uint64_t hash_param(const UnitSpec::Param& param) {
  uint64_t hash =
      mix_hash(static_cast<uint64_t>(param.dtype), static_cast<uint64_t>(param.dims.size()));
  for (const int64_t dim : param.dims) hash = mix_hash(hash, static_cast<uint64_t>(dim));
  hash = mix_hash(mix_hash(hash, param.block_rows), param.block_columns);
  return mix_hash(hash, uint64_t{param.frozen} << 32 | static_cast<uint32_t>(param.tied_to));
}

uint64_t hash_settings(const UnitSpec& spec) {
  uint64_t hash =
      mix_hash(static_cast<uint64_t>(spec.layout), static_cast<uint64_t>(spec.wire_dtype));
  hash = mix_hash(hash, static_cast<uint64_t>(spec.reduce_dtype) << 32 |
                            static_cast<uint64_t>(spec.grad_dtype));
  hash =
      mix_hash(hash, static_cast<uint64_t>(spec.sharing) << 32 | static_cast<uint64_t>(spec.keep));
  hash = mix_hash(hash, spec.keep_budget_bytes);
  return mix_hash(hash, uint64_t{spec.by_parameter} << 2 | uint64_t{spec.marks_changes} << 1 |
                            (spec.replicate_comm != nullptr));
}

// Returns a hash of which sharded gradients lie in memory of the caller. Replicas sum each of these
// by itself.
uint64_t hash_callers(const UnitSpec& spec, const Layout& layout) {
  uint64_t hash = 0;
  for (size_t i = 0; i < spec.params.size(); i++) {
    const UnitSpec::Param& param = spec.params[i];
    const bool summed =
        !param.frozen && !layout.tied(i) && layout.piece(spec.shard_comm->rank(), i).count;
    hash = mix_hash(hash, summed && param.sharded_grad);
  }
  return hash;
}

// Returns the error for ranks that gave other codecs, such as `rank`. All ranks of `comm` call it
// and exchange what they gave.
Status other_codecs(Communicator& comm, const UnitSpec& spec, bool gathers, size_t rank) {
  struct Text {
    char text[200];
    std::string_view shown() const { return {text, strnlen(text, sizeof text)}; }
  };
  const std::string own = (gathers ? spec.gather_codec : spec.reduce_codec).text();
  Text mine{};
  std::memcpy(mine.text, own.data(), std::min(own.size(), sizeof mine.text - 1));
  FSCCL_ASSIGN(const std::vector<Text> all, all_gather(comm, mine));
  return fail(
      FSCCL_ERR_MISMATCH,
      "ranks disagree on unit '{}': rank 0 and rank {} gave other codecs for the {}: rank 0 "
      "{}; rank {} {}",
      spec.name, rank, gathers ? "gather" : "reduction", all[0].shown(), rank, all[rank].shown());
}

// The description of a unit that ranks compare: a hash of each of its settings and parameters.
struct Described {
  static constexpr size_t kOfUnit = 3;  // the hashes before those of the parameters
  std::vector<uint64_t> hashes;
  uint64_t hash = 0;     // hash of all of them
  uint64_t callers = 0;  // hash_callers(), which replicas compare besides

  Described(const UnitSpec& spec, const Layout& layout) : callers(hash_callers(spec, layout)) {
    hashes = {hash_settings(spec), spec.gather_codec.hash(), spec.reduce_codec.hash()};
    for (const UnitSpec::Param& param : spec.params) hashes.push_back(hash_param(param));
    for (const uint64_t one : hashes) hash = mix_hash(hash, one);
  }
};

// Returns the error for rank 0 and the first rank of `comm` that described another unit.
Status other_unit(Communicator& comm, const UnitSpec& spec, const std::vector<uint64_t>& hashes) {
  FSCCL_ASSIGN(const std::vector<uint64_t> table, all_gather_rows(comm, hashes));
  size_t at = hashes.size();
  while (at + 1 < table.size() && table[at] == table[at % hashes.size()]) at++;
  const size_t rank = at / hashes.size(), i = at % hashes.size();
  if (i == 0)
    return fail(FSCCL_ERR_MISMATCH,
                "ranks disagree on unit '{}': rank 0 and rank {} gave other settings "
                "(layout, dtypes, sharing, keep, slots or replicas)",
                spec.name, rank);
  if (i < Described::kOfUnit) return other_codecs(comm, spec, i == 1, rank);
  return fail(FSCCL_ERR_MISMATCH,
              "ranks disagree on unit '{}': parameter {} ('{}' here) has another shape, block, "
              "dtype, tie or flag on rank 0 than on rank {}",
              spec.name, i - Described::kOfUnit, spec.params[i - Described::kOfUnit].name, rank);
}

Status compare_over(Communicator& comm, const UnitSpec& spec, const Described& described) {
  struct Summary {
    uint64_t hash, params, shard, callers;
  };
  const bool replicas = &comm == spec.replicate_comm;
  const Summary mine{described.hash, spec.params.size(),
                     replicas ? static_cast<uint64_t>(spec.shard_comm->rank()) : 0,
                     replicas ? described.callers : 0};
  FSCCL_ASSIGN(const std::vector<Summary> all, all_gather(comm, mine));
  // Returns the first rank that differs from rank 0 in this member, or 0 if none does.
  const auto differs_in = [&all](uint64_t Summary::* member) {
    const auto other = std::find_if(
        all.begin(), all.end(), [&](const Summary& one) { return one.*member != all[0].*member; });
    return other == all.end() ? 0 : static_cast<size_t>(other - all.begin());
  };
  if (const size_t rank = differs_in(&Summary::params))
    return fail(FSCCL_ERR_MISMATCH,
                "ranks disagree on unit '{}': rank 0 has {} parameters, rank {} has {}", spec.name,
                all[0].params, rank, all[rank].params);
  if (const size_t rank = differs_in(&Summary::shard))
    return fail(FSCCL_ERR_MISMATCH,
                "replicas of unit '{}' hold different shards: rank 0 of replicate_comm is rank "
                "{} of its shard_comm, rank {} is "
                "rank {}; a replicate_comm joins the ranks that hold the same shard",
                spec.name, all[0].shard, rank, all[rank].shard);
  if (differs_in(&Summary::hash)) return other_unit(comm, spec, described.hashes);
  if (const size_t rank = differs_in(&Summary::callers))
    return fail(FSCCL_ERR_MISMATCH,
                "replicas of unit '{}' sum other memory: rank 0 of replicate_comm gave "
                "sharded_grad for other parameters than rank {}; give it on all replicas of a "
                "parameter, or on none",
                spec.name, rank);
  return success();
}

// Checks that all ranks have described the same unit. The error names the first parameter that
// differs. Ranks with replicas tell each other what they found, because those of another shard_comm
// or replicate_comm may have found nothing.
Result<uint64_t> compare_definitions(const UnitSpec& spec, const Layout& layout) {
  const Described described(spec, layout);
  Status compared = compare_over(*spec.shard_comm, spec, described);
  if (spec.replicate_comm) {
    const std::string what = fmt::format("make unit '{}'", spec.name);
    compared = all_ok(*spec.replicate_comm, std::move(compared), what);
    if (compared.ok()) compared = compare_over(*spec.replicate_comm, spec, described);
    compared = all_ok(*spec.shard_comm, std::move(compared), what);
  }
  FSCCL_TRY(std::move(compared));
  return described.hash;
}

// A tied parameter is its owner, so it has the owner's dtype, and is frozen if its owner is.
Status match_owners(UnitSpec& spec, const Layout& layout) {
  for (size_t i = 0; i < spec.params.size(); i++) {
    UnitSpec::Param& param = spec.params[i];
    const UnitSpec::Param& owner = spec.params[layout.owner(i)];
    if (param.dtype != owner.dtype)
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "parameter {} ('{}') of unit '{}' has dtype {} and is tied to '{}' of dtype {}: "
                  "give both the same",
                  i, param.name, spec.name, dtype_name(param.dtype), owner.name,
                  dtype_name(owner.dtype));
    param.frozen = owner.frozen;
  }
  return success();
}

// Returns the map of one slot, or of one slot for each parameter.
SlotMap map_slots(const UnitSpec& spec, const Layout& layout, const std::vector<size_t>& sizes) {
  return spec.by_parameter ? make_slots_by_parameter(layout, sizes) : make_slot_map(layout, sizes);
}

template <class Wanted, class Callers, class ElementBytes>
Result<ShardMemory> place(const UnitSpec& spec, const Layout& layout,
                          const AllocateShards& allocate, Wanted wanted, Callers callers,
                          ElementBytes element_bytes) {
  const size_t count = spec.params.size();
  ShardMemory made;
  uint64_t bytes = 0;
  std::vector<uint64_t> offsets(count, SlotMap::kAbsent);
  for (size_t i = 0; i < count; i++) {
    const uint64_t size = layout.piece(spec.shard_comm->rank(), i).count * element_bytes(i);
    if (layout.tied(i) || !wanted(i) || !size || callers(i)) continue;
    offsets[i] = bytes;
    bytes += round_up(size, 64);
  }
  made.places.resize(count);  // An exception here leaks nothing: there is no block yet.
  if (bytes) {
    FSCCL_ASSIGN(made.block, allocate(bytes));
    made.block_bytes = bytes;
  }
  for (size_t i = 0; i < count; i++) {
    const size_t owner = layout.owner(i);
    made.places[i] = offsets[owner] != SlotMap::kAbsent ? made.block + offsets[owner]
                                                        : static_cast<std::byte*>(callers(owner));
  }
  return made;
}

Result<Layout> make_layout(const UnitSpec& spec) {
  if (spec.layout_of) return spec.layout_of->only(spec.parameter);
  std::vector<ParamShape> shapes;
  for (const UnitSpec::Param& param : spec.params)
    shapes.push_back({param.dims, param.tied_to, param.block_rows, param.block_columns});
  return Layout::make(spec.layout, std::move(shapes), spec.shard_comm->size());
}

}  // namespace

BlockForm CodecSpec::form() const {
  switch (kind) {
    case FSCCL_CODEC_FP8:
      return {BlockKind::fp8, block};
    case FSCCL_CODEC_MXFP8:
      return {BlockKind::mxfp8, block};
    case FSCCL_CODEC_INT4:
      return {BlockKind::int4, block};
    case FSCCL_CODEC_BF16:
      return {BlockKind::bf16, block};
    case FSCCL_CODEC_CUSTOM:
      return {BlockKind::custom, block, custom.get()};
    default:
      return {BlockKind::int8, block};
  }
}

uint64_t CodecSpec::hash() const {
  uint64_t hash = mix_in_order(static_cast<uint64_t>(kind), flags);
  hash = mix_in_order(hash, uint64_t{block} << 32 | audit_every);
  hash = mix_in_order(hash, everywhere);
  hash = mix_in_order(hash, std::bit_cast<uint64_t>(max_relative_error));
  return custom ? mix_in_order(hash, custom->hash()) : hash;
}

const char* CodecSpec::name() const {
  if (kind == FSCCL_CODEC_NONE) return nullptr;
  return custom ? custom->name().c_str() : kBuiltInCodecs[static_cast<size_t>(kind)];
}

std::string CodecSpec::text() const {
  if (kind == FSCCL_CODEC_NONE) return "none";
  std::string text = fmt::format(
      "{} ({}, flags {:#x}, block {}, max_relative_error {}, audit_every {}", name(),
      everywhere ? "everywhere" : "between hosts", flags, block, max_relative_error, audit_every);
  if (custom)
    text += fmt::format(", version {}, bound {}, {} bytes for a block", custom->version(),
                        custom->bound(), custom->bytes(block));
  return text + ")";
}

Result<UnitDefinition> UnitDefinition::make(UnitSpec& spec) {
  UnitDefinition made;
  const size_t count = spec.params.size();
  FSCCL_ASSIGN(Layout layout, make_layout(spec));
  FSCCL_TRY(match_owners(spec, layout));
  FSCCL_ASSIGN(made.hash, compare_definitions(spec, layout));

  std::vector<size_t> wire_sizes, grad_sizes;
  for (size_t i = 0; i < count; i++) {
    const UnitSpec::Param& owner = spec.params[layout.owner(i)];
    const bool castable = cast_supported(spec.wire_dtype, owner.dtype);
    // Elements that cannot be cast travel in their own type.
    made.wire_dtypes.push_back(castable ? spec.wire_dtype : owner.dtype);
    wire_sizes.push_back(dtype_size(made.wire_dtypes.back()));
    grad_sizes.push_back(spec.params[i].frozen ? 0 : dtype_size(spec.reduce_dtype));
    made.unshard_shape.shard_dtype.push_back(owner.dtype);
  }
  made.wire_map = map_slots(spec, layout, wire_sizes);
  made.grad_map = map_slots(spec, layout, grad_sizes);
  made.layout = std::make_unique<Layout>(std::move(layout));
  made.unshard_shape.layout = made.layout.get();
  made.unshard_shape.rank = spec.shard_comm->rank();
  made.reduce_shape = made.unshard_shape;
  made.unshard_shape.slot = made.wire_map;
  made.unshard_shape.slot_dtype = made.wire_dtypes;
  made.reduce_shape.slot = made.grad_map;
  made.reduce_shape.slot_dtype.assign(count, spec.reduce_dtype);
  made.reduce_shape.grad_dtype.assign(count, spec.grad_dtype);
  return made;
}

Status agree_on_shards(const UnitSpec& spec, Status mine) {
  const std::string what = fmt::format("place its shards of unit '{}'", spec.name);
  for (Communicator* comm : {spec.shard_comm, spec.replicate_comm})
    if (comm) mine = all_ok(*comm, std::move(mine), what);
  return mine;
}

Result<ShardMemory> place_shards(const UnitSpec& spec, const Layout& layout,
                                 const AllocateShards& allocate) {
  return place(
      spec, layout, allocate, [](size_t) { return true; },
      [&](size_t i) { return spec.params[i].shard; },
      [&](size_t i) { return dtype_size(spec.params[i].dtype); });
}

Result<ShardMemory> place_sharded_grads(const UnitSpec& spec, const Layout& layout,
                                        const AllocateShards& allocate) {
  return place(
      spec, layout, allocate, [&](size_t i) { return !spec.params[i].frozen; },
      [&](size_t i) { return spec.params[i].sharded_grad; },
      [&](size_t) { return dtype_size(spec.grad_dtype); });
}

}  // namespace fsccl
