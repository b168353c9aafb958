// Which rank holds which elements of a unit's parameters, and where each parameter lies in a slot.
// Pure arithmetic: the same on every rank, no memory, no I/O.
//
// Three layouts (fsccl_layout_t), and in each a rank's part of a parameter is one contiguous piece,
// in the order of the ranks:
//   flat       all parameters end to end, cut into `ranks` equal parts (FSDP1's FlatParameter,
//              arXiv 2304.11277); a part may begin and end inside a parameter; only the tail is
//              padded.
//   per_param  each parameter cut along dimension 0 into chunks of ceil(dim0 / ranks) rows (FSDP2,
//              torch.chunk): later ranks hold fewer rows, or none. A scalar is one row.
//   ragged     cut between blocks, dealt out so that the largest shard is small (ragged.h;
//              veScale's RaggedShard, arXiv 2602.22437).
// Padding, the difference between equal shards and these, is a number only: it is never stored nor
// moved. A tied parameter has no bytes of its own: its piece and its place are its owner's.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "layout/ragged.h"

namespace fsccl {

struct ParamShape {
  std::vector<int64_t> dims;  // may be empty (scalar); a dimension may be 0
  int tied_to = -1;           // index of an earlier, untied parameter with equal dims and blocks
  // ragged: what a shard boundary never cuts (blocks.h); 0 and 1: one element
  uint64_t block_rows = 0;
  uint64_t block_columns = 0;
};

// A contiguous run of elements of one parameter.
struct Piece {
  uint64_t begin = 0;
  uint64_t count = 0;
};

class Layout {
 public:
  // Checks: dimensions not negative, all parameters together within 2^58 elements (so byte offsets
  // fit), ties valid, ranks >= 1, kind known, blocks only where it is ragged.
  static Result<Layout> make(fsccl_layout_t kind, std::vector<ParamShape> params, int ranks);

  fsccl_layout_t kind() const { return kind_; }
  int ranks() const { return ranks_; }
  size_t size() const { return numel_.size(); }  // parameters
  uint64_t numel(size_t param) const { return numel_[param]; }
  size_t owner(size_t param) const { return owner_[param]; }  // itself, or what it is tied to
  bool tied(size_t param) const { return owner_[param] != param; }
  Piece piece(int rank, size_t param) const;  // rank's part; of the owner for a tied one
  // The layout of this parameter alone, which is not tied, with the pieces that it has here.
  Layout only(size_t param) const;
  uint64_t total() const { return total_; }  // elements, ties counted once
  uint64_t shard_total(int rank) const;      // elements that rank holds, ties counted once
  uint64_t largest_shard() const;            // the most elements that a rank holds
  // elements by which ranks x the largest shard exceeds total()
  uint64_t padding() const;
  // No assignment of this layout's blocks (flat: elements; per_param: rows) to W ranks has less
  // padding: W * max(N / W, block_bound) - N, with N elements (blocks.h).
  uint64_t padding_bound() const;

 private:
  uint64_t padding_of(uint64_t largest) const;

  fsccl_layout_t kind_{};
  int ranks_ = 0;
  std::vector<uint64_t> numel_, rows_, flat_begin_;
  std::vector<size_t> owner_;
  std::vector<BlockGrid> grids_;  // ragged; empty ones for tied parameters
  RaggedPlan ragged_;
  uint64_t total_ = 0;
  uint64_t flat_total_ =
      0;  // elements that `flat` cuts into equal parts; above total_ after only()
};

// Where parameters lie: all in one slot, or each in a slot of its own.
struct SlotMap {
  static constexpr uint64_t kAbsent = ~uint64_t{0};
  bool by_parameter = false;
  // bytes of each slot, a multiple of the alignment: of one, or of one for each parameter (0: none)
  std::vector<uint64_t> slots;
  // per parameter, in its slot; kAbsent where not included; a tied one has its owner's
  std::vector<uint64_t> offset;
  uint64_t bytes = 0;  // bytes of all slots

  // The slot of a parameter that is not tied.
  size_t slot_of(size_t owner) const { return by_parameter ? owner : 0; }
};
// element_size[i]: bytes per element of parameter i; 0 leaves it out (a frozen parameter among
// gradients). One slot. per_param, ragged: each parameter begins at a multiple of `alignment`.
// flat: parameters of one element size lie end to end without gaps (a parameter begins where the
// one before ends, rounded up to its own element size).
SlotMap make_slot_map(const Layout& layout, const std::vector<size_t>& element_size,
                      uint64_t alignment = 64);
// A slot for each parameter.
SlotMap make_slots_by_parameter(const Layout& layout, const std::vector<size_t>& element_size,
                                uint64_t alignment = 64);

}  // namespace fsccl
