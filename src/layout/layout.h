// A layout says which rank holds which elements of a unit's parameters, and where each parameter
// lies in a slot. It is pure arithmetic with the same result on every rank.
//
// There are three layouts (fsccl_layout_t). In each of them a rank's part of a parameter is one
// contiguous piece, and the pieces follow each other in the order of the ranks:
//   flat       all parameters end to end, cut into `ranks` equal parts (FSDP1's FlatParameter,
//              arXiv 2304.11277); a part may begin and end inside a parameter; only the tail is
//              padded.
//   per_param  each parameter cut along dimension 0 into chunks of ceil(dim0 / ranks) rows (FSDP2,
//              torch.chunk): later ranks hold fewer rows, or none. A scalar is one row.
//   ragged     cut between blocks, dealt out so that the largest shard is small (ragged.h;
//              veScale's RaggedShard, arXiv 2602.22437).
// Padding, the difference between these shards and equal ones, is only a number: padding is neither
// stored nor moved. A tied parameter has no bytes of its own; it shares the piece and the place of
// its owner.
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
  // Checks that dimensions are not negative, that all parameters together have at most 2^58
  // elements (so that byte offsets fit), that ties are valid, that ranks >= 1, that the kind is
  // known, and that only the ragged layout has blocks.
  static Result<Layout> make(fsccl_layout_t kind, std::vector<ParamShape> params, int ranks);

  fsccl_layout_t kind() const { return kind_; }
  int ranks() const { return ranks_; }
  size_t size() const { return numel_.size(); }  // parameters
  uint64_t numel(size_t param) const { return numel_[param]; }
  size_t owner(size_t param) const { return owner_[param]; }  // itself, or what it is tied to
  bool tied(size_t param) const { return owner_[param] != param; }
  Piece piece(int rank, size_t param) const;  // rank's part; of the owner for a tied one
  // Returns the layout of this parameter alone, with the pieces that it has here. The parameter
  // must not be tied.
  Layout only(size_t param) const;
  uint64_t total() const { return total_; }  // elements, ties counted once
  uint64_t shard_total(int rank) const;      // elements that rank holds, ties counted once
  uint64_t largest_shard() const;            // the most elements that a rank holds
  // elements by which ranks x the largest shard exceeds total()
  uint64_t padding() const;
  // A lower bound: with N elements and W ranks, no assignment of this layout's blocks (flat:
  // elements; per_param: rows) has less padding than W * max(N / W, block_bound) - N (blocks.h).
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

// The places of parameters: all in one slot, or each in a slot of its own.
struct SlotMap {
  static constexpr uint64_t kAbsent = ~uint64_t{0};
  bool by_parameter = false;
  // The bytes of each slot, multiples of the alignment. There is one slot, or one for each
  // parameter (0: the parameter has none).
  std::vector<uint64_t> slots;
  // The offset of each parameter in its slot; kAbsent if it is not included. A tied parameter has
  // the offset of its owner.
  std::vector<uint64_t> offset;
  uint64_t bytes = 0;  // bytes of all slots

  // The slot of a parameter that is not tied.
  size_t slot_of(size_t owner) const { return by_parameter ? owner : 0; }
};
// Places all parameters in one slot. element_size[i] is the bytes per element of parameter i; 0
// leaves the parameter out, as with a frozen parameter among gradients. In the layouts per_param
// and ragged each parameter begins at a multiple of `alignment`. In flat, parameters of one element
// size lie end to end (a parameter begins where the one before ends, rounded up to its own element
// size).
SlotMap make_slot_map(const Layout& layout, const std::vector<size_t>& element_size,
                      uint64_t alignment = 64);
// Places each parameter in a slot of its own.
SlotMap make_slots_by_parameter(const Layout& layout, const std::vector<size_t>& element_size,
                                uint64_t alignment = 64);

}  // namespace fsccl
