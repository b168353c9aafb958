// The part of a unit's creation that does not depend on the kind of memory. The ranks compare their
// definitions, the parameters are laid out, and the shards get their storage.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codec/blocks.h"
#include "comm/communicator.h"
#include "comm/consensus.h"
#include "fsccl/codec.h"
#include "layout/layout.h"
#include "plan/unit_plans.h"

namespace fsccl {

class Pool;

// The codec that a config asks for, with which parameters or gradients travel between hosts.
struct CodecSpec {
  fsccl_codec_kind_t kind = FSCCL_CODEC_NONE;
  uint32_t flags = 0;
  // Only block codecs use the following fields.
  uint32_t block = 0;
  double max_relative_error = 0;
  uint32_t audit_every = 0;
  bool everywhere = false;                    // FSCCL_CODEC_EVERYWHERE
  std::shared_ptr<const CustomCodec> custom;  // the codec of FSCCL_CODEC_CUSTOM

  bool loses() const { return kind != FSCCL_CODEC_NONE && kind != FSCCL_CODEC_DELTA; }
  BlockForm form() const;    // for a block codec; valid as long as this object
  const char* name() const;  // null: no codec; that of a custom codec lives as long as this object
  uint64_t hash() const;     // hash of all fields, which must be the same on all ranks
  std::string text() const;  // all fields
};

// The checked arguments of fsccl_unit_create.
struct UnitSpec {
  std::string name;
  fsccl_layout_t layout{};
  Communicator* shard_comm = nullptr;
  Communicator* replicate_comm = nullptr;
  Pool* pool = nullptr;  // where the slots are, on a host or a GPU
  fsccl_dtype_t wire_dtype{}, reduce_dtype{}, grad_dtype{};
  fsccl_sharing_t sharing{};
  fsccl_keep_t keep{};
  uint64_t keep_budget_bytes = 0;
  bool marks_changes = false;
  bool by_parameter = false;
  CodecSpec gather_codec, reduce_codec;
  // Returns true if a codec is used although all ranks are on one host.
  bool codes_everywhere() const { return gather_codec.everywhere || reduce_codec.everywhere; }
  // Each returns true if what is gathered or reduced loses something, because a codec is used.
  bool gathers_coded() const { return coded(gather_codec); }
  bool reduces_coded() const { return coded(reduce_codec); }
  bool coded(const CodecSpec& codec) const {
    return codec.loses() && (codec.everywhere || !shard_comm->one_host());
  }
  struct Param {
    std::string name;
    std::vector<int64_t> dims;
    fsccl_dtype_t dtype{};
    bool frozen = false;
    int tied_to = -1;
    void* shard = nullptr;
    void* sharded_grad = nullptr;
    uint64_t block_rows = 0, block_columns = 0;
  };
  std::vector<Param> params;
  // If this unit is one parameter of another unit: the layout of that unit, and the index of the
  // parameter. If it is null, the unit has a layout of its own.
  const Layout* layout_of = nullptr;
  size_t parameter = 0;
};

// The facts that follow from a definition. They are the same on all ranks.
struct UnitDefinition {
  // Collective over the unit's communicators, blocking. FSCCL_ERR_MISMATCH names the first
  // parameter that differs. Afterwards a tied parameter is frozen if and only if its owner is.
  static Result<UnitDefinition> make(UnitSpec& spec);

  std::unique_ptr<Layout> layout;
  uint64_t hash = 0;
  std::vector<fsccl_dtype_t> wire_dtypes;  // per parameter
  SlotMap wire_map, grad_map;
  UnitShape unshard_shape, reduce_shape;  // shapes of this rank, all parameters
};

// Returns success if all ranks of the unit have placed their shards. Otherwise all ranks get the
// first error (all_ok of consensus.h). Collective over both communicators, blocking.
Status agree_on_shards(const UnitSpec& spec, Status mine);

// The storage of this rank's shards, or of its sharded gradients: memory of the caller, or pieces
// of one block.
struct ShardMemory {
  std::vector<std::byte*> places;  // per parameter; null where this rank holds none
  std::byte* block = nullptr;
  uint64_t block_bytes = 0;

  bool in_block(const std::byte* place) const {
    return block && place >= block && place < block + block_bytes;
  }
};
// Returns memory for the block, filled with zeros.
using AllocateShards = std::function<Result<std::byte*>(uint64_t bytes)>;
Result<ShardMemory> place_shards(const UnitSpec& spec, const Layout& layout,
                                 const AllocateShards& allocate);
Result<ShardMemory> place_sharded_grads(const UnitSpec& spec, const Layout& layout,
                                        const AllocateShards& allocate);

}  // namespace fsccl
