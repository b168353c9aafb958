#include "unit/lane_exchange.h"

#include "engine/communicator.h"
#include "plan/unit_build.h"

namespace fsccl {

LaneExchange::LaneExchange(const UnitShape& shape, const std::vector<int>& holders, int ranks, int self)
    : ranks_(static_cast<size_t>(ranks)) {
  for (const size_t i : parameters_of(shape)) {
    if (shape.layout->tied(i) || shape.slot.offset[i] == SlotMap::kAbsent) continue;
    const uint64_t size = dtype_size(shape.slot_dtype[i]);
    for (size_t rank = 0; rank < holders.size(); rank++) {
      const Piece piece = shape.layout->piece(static_cast<int>(rank), i);
      if (holders[rank] < 0 || piece.count == 0) continue;
      add(shape.slot.slot_of(i), shape.slot.offset[i] + piece.begin * size, piece.count, shape.slot_dtype[i], holders[rank], self);
    }
  }
  tensors_.resize(runs_.size());
}

// Parts of a tensor lie one behind the other in the order of the ranks.
void LaneExchange::add(size_t slot, uint64_t offset, uint64_t count, fsccl_dtype_t dtype, int holder, int self) {
  const bool touches = !runs_.empty() && runs_.back().slot == slot && runs_.back().dtype == dtype &&
                       runs_.back().offset + runs_.back().bytes == offset && runs_.back().last <= holder;
  if (!touches) {
    runs_.push_back({slot, offset, 0, 0, dtype, holder});
    counts_.resize(counts_.size() + ranks_);
  }
  Run& run = runs_.back();
  const uint64_t bytes = count * dtype_size(dtype);
  counts_[counts_.size() - ranks_ + static_cast<size_t>(holder)] += count;
  if (holder < self) run.own += bytes;
  run.bytes += bytes;
  run.last = holder;
}

Status LaneExchange::run(Communicator& among, ListKind kind, const SlotSet& slots, const Prepare& prepare) {
  for (size_t t = 0; t < runs_.size(); t++) {
    std::byte* const all = slots.base(runs_[t].slot) + runs_[t].offset;
    std::byte* const own = all + runs_[t].own;
    const bool gather = kind == ListKind::all_gather;
    tensors_[t] = {gather ? own : all, gather ? all : own, &counts_[t * ranks_], runs_[t].dtype};
  }
  ListCall call{tensors_.data(), tensors_.size(), kind};
  call.prepare = prepare.call;
  call.prepare_context = prepare.context;
  fsccl_status_t state;
  return among.lists().run(among.collectives(), call, false, &state);
}

}  // namespace fsccl
