#include "unit/host/lane_exchange.h"

#include <algorithm>
#include <tuple>

#include "comm/communicator.h"
#include "plan/unit_build.h"

namespace fsccl {

LaneExchange::LaneExchange(const UnitShape& shape, Kind kind, const std::vector<int>& holders,
                           int ranks, int self, bool ranks_apart)
    : kind_(kind), ranks_(static_cast<size_t>(ranks)), ranks_apart_(ranks_apart) {
  std::vector<Part> parts;
  for (const size_t i : parameters_of(shape)) {
    if (shape.layout->tied(i) || shape.slot.offset[i] == SlotMap::kAbsent) continue;
    for (size_t rank = 0; rank < holders.size(); rank++) {
      const Piece piece = shape.layout->piece(static_cast<int>(rank), i);
      if (holders[rank] < 0 || piece.count == 0) continue;
      const bool sums = kind == Kind::partial_sums;
      const fsccl_dtype_t dtype = sums ? shape.sums.dtype : shape.slot_dtype[i];
      const uint64_t at = sums ? shape.sums.offset[i][rank]
                               : shape.slot.offset[i] + piece.begin * dtype_size(dtype);
      parts.push_back({shape.slot.slot_of(i), at, piece.count, dtype, holders[rank], rank, i});
    }
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return std::tie(a.slot, a.offset) < std::tie(b.slot, b.offset);
  });
  for (const Part& part : parts)
    add(part, kind == Kind::contributions ? shape.grad_dtype[part.parameter] : part.dtype, self);
  tensors_.resize(runs_.size());
}

// Adds a part. Parts of a tensor follow each other in the order of the ranks.
void LaneExchange::add(const Part& part, fsccl_dtype_t received, int self) {
  const bool touches =
      !runs_.empty() && runs_.back().slot == part.slot && runs_.back().dtype == part.dtype &&
      runs_.back().offset + runs_.back().bytes == part.offset && runs_.back().last <= part.holder &&
      (kind_ != Kind::contributions || runs_.back().parameter == part.parameter) &&
      (!ranks_apart_ || runs_.back().last != part.holder || runs_.back().last_rank == part.rank);
  if (!touches) {
    runs_.push_back(
        {part.slot, part.offset, 0, 0, part.dtype, part.holder, part.rank, part.parameter});
    received_.push_back(received);
    counts_.resize(counts_.size() + ranks_);
  }
  Run& run = runs_.back();
  const uint64_t bytes = part.count * dtype_size(part.dtype);
  counts_[counts_.size() - ranks_ + static_cast<size_t>(part.holder)] += part.count;
  if (part.holder < self) run.own += bytes;
  run.bytes += bytes;
  run.last = part.holder;
  run.last_rank = part.rank;
}

std::vector<LaneExchange::Range> LaneExchange::ranges() const {
  std::vector<Range> made;
  for (size_t t = 0; t < runs_.size(); t++) {
    uint64_t at = runs_[t].offset;
    for (size_t holder = 0; holder < ranks_; holder++) {
      const uint64_t bytes = counts_[t * ranks_ + holder] * dtype_size(runs_[t].dtype);
      if (bytes)
        made.push_back({runs_[t].slot, at, bytes, runs_[t].dtype, holder, runs_[t].parameter});
      at += bytes;
    }
  }
  return made;
}

Status LaneExchange::run(Communicator& among, const SlotSet& slots,
                         const std::vector<std::byte*>& sharded_grads,
                         FunctionRef<void(Operation&)> prepare) {
  const bool gather = kind_ == Kind::parameters;
  for (size_t t = 0; t < runs_.size(); t++) {
    std::byte* const all = slots.base(runs_[t].slot) + runs_[t].offset;
    std::byte* const own =
        kind_ == Kind::contributions ? sharded_grads[runs_[t].parameter] : all + runs_[t].own;
    tensors_[t] = {gather ? own : all, gather ? all : own, &counts_[t * ranks_], runs_[t].dtype};
  }
  ListCall call{tensors_.data(), tensors_.size(),
                gather ? ListKind::all_gather : ListKind::reduce_scatter};
  if (!gather) call.received = received_.data();
  call.prepare = prepare;
  fsccl_status_t state;
  return among.run(call, false, &state);
}

}  // namespace fsccl
