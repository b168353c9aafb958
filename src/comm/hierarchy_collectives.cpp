// The stages of each collective that runs in two levels.
#include <algorithm>

#include "comm/communicator.h"
#include "comm/hierarchy.h"
#include "plan/build.h"

namespace fsccl {
namespace {

// An all_reduce takes so many elements at a time, which bounds the memory of its sums over a host.
constexpr uint64_t kWideElements = 16u << 20;

std::byte* at(const void* base, uint64_t bytes) {
  return static_cast<std::byte*>(const_cast<void*>(base)) + bytes;
}

// Returns the operator of the first sum, over a host; the second sum goes over hosts. Factors are
// applied before all sums, and divisors after all.
fsccl_op_t first_sum(fsccl_op_t op) {
  if (op.kind == FSCCL_OP_AVG) op.kind = FSCCL_OP_SUM;
  return op;
}
fsccl_op_t last_sum(fsccl_op_t op) {
  if (op.kind == FSCCL_OP_PREMUL_SUM) op = FSCCL_SUM;
  return op;
}

}  // namespace

// Elements cut into a part for each lane, of whole lines but for the last. Few elements are cut
// into parts for some of the lanes. Ranks without a lane get none.
void Hierarchy::cut(uint64_t count, fsccl_dtype_t dtype) {
  const size_t lanes = at_.lanes();
  const uint64_t line = 64 / dtype_size(dtype), lines = (count + line - 1) / line,
                 each = std::max((lines + lanes - 1) / lanes, kLeastLaneBytes / 64) * line;
  counts_.assign(at_.host_size(), 0);
  displacements_.assign(at_.host_size(), count);
  for (size_t i = 0; i < lanes; i++) {
    displacements_[i] = std::min(count, each * i);
    counts_[i] = std::min(each, count - displacements_[i]);
  }
}

// The parts of a stage: those for which `use` says yes, having said who holds them.
template <class Use>
void Hierarchy::hold(Join join, Use use) {
  held_.clear();
  const Part* before = nullptr;
  for (const Part& part : parts_) {
    Held held{0, part.count, part.dtype, part.dtype, false, part.at, part.own};
    if (!use(part, held)) continue;
    if (join != Join::never && before && before + 1 == &part && before->tensor == part.tensor)
      held.joins = held.holder > held_.back().holder ||
                   (join == Join::all && held.holder == held_.back().holder);
    held_.push_back(held);
    before = &part;
  }
}

// plain: the output of a call that is no list.
Status Hierarchy::gather(std::byte* plain) {
  const bool has_laneless_ranks = at_.host_size() > at_.lanes();
  if (has_laneless_ranks) {
    hold(Join::holders, [&](const Part& part, Held& held) {
      held.holder = places_[part.rank].index;
      return places_[part.rank].host == own_place_.host;
    });
    FSCCL_TRY(stage_list(*host_, ListKind::all_gather));
  }
  if (lane_) {
    hold(Join::holders, [&](const Part& part, Held& held) {
      held.holder = places_[part.rank].host;
      if (!held.own) held.own = part.at;
      return lane_of(part) == own_place_.index;
    });
    FSCCL_TRY(plain ? stage_rounds(ListKind::all_gather, plain)
                    : stage_list(*lane_, ListKind::all_gather));
  }
  hold(Join::all, [&](const Part& part, Held& held) {
    held.holder = lane_of(part);
    held.own = part.at;
    return !(has_laneless_ranks && places_[part.rank].host == own_place_.host);
  });
  return stage_list(*host_, ListKind::all_gather);
}

// Where sums lie in scratch_, and how much that takes.
uint64_t Hierarchy::place_partials() {
  uint64_t bytes = 0;
  size_t tensor = SIZE_MAX;
  for (Part& part : parts_) {
    if (!lane_ || lane_of(part) != own_place_.index) continue;
    if (part.tensor != tensor) bytes = round_up_line(bytes);
    tensor = part.tensor;
    part.partial = bytes;
    bytes += part.count * dtype_size(part.partial_dtype);
  }
  for (Part& part : parts_) {
    if (!carried(part)) continue;
    part.result = round_up_line(bytes);
    bytes = part.result + part.count * dtype_size(part.dtype);
  }
  return bytes;
}

Status Hierarchy::reserve_scratch(uint64_t bytes) {
  if (scratch_.size() >= bytes) return success();
  FSCCL_TRY(finish());  // calls that still use the old memory
  scratch_.resize(bytes);
  return success();
}

Status Hierarchy::reduce_scatter(fsccl_op_t reduction, bool plain) {
  FSCCL_TRY(reserve_scratch(place_partials()));
  const bool widens = !parts_.empty() && parts_[0].partial_dtype != parts_[0].dtype;
  hold(Join::all, [&](const Part& part, Held& held) {
    held.holder = lane_of(part);
    held.own = at(scratch_.data(), part.partial);
    held.received = part.partial_dtype;
    return true;
  });
  FSCCL_TRY(stage_list(*host_, ListKind::reduce_scatter, first_sum(reduction)));
  if (lane_) {
    hold(Join::holders, [&](const Part& part, Held& held) {
      held.holder = places_[part.rank].host;
      held.at = at(scratch_.data(), part.partial);
      held.dtype = part.partial_dtype;
      if (!held.own) held.own = at(scratch_.data(), part.result);
      return lane_of(part) == own_place_.index;
    });
    FSCCL_TRY(plain && !widens
                  ? stage_rounds(ListKind::reduce_scatter, scratch_.data(), last_sum(reduction))
                  : stage_list(*lane_, ListKind::reduce_scatter, last_sum(reduction), true));
  }
  hold(Join::never, [&](const Part& part, Held& held) {
    held.holder = lane_of(part);
    held.own = at(scratch_.data(), part.result);
    if (!part.own) held.at = held.own;
    if (part.own) held.at = part.own;
    return carried(part);
  });
  return stage_list(*host_, ListKind::all_gather);
}

Status Hierarchy::all_reduce(const CollectiveCall& call) {
  if (partial_dtype(call.dtype, call.reduction) != call.dtype) {
    CollectiveCall block = call;
    for (uint64_t begin = 0; begin < call.count; begin += kWideElements) {
      block.input = at(call.input, begin * dtype_size(call.dtype));
      block.output = at(call.output, begin * dtype_size(call.dtype));
      block.count = std::min(kWideElements, call.count - begin);
      FSCCL_TRY(all_reduce_wide(block));
    }
    return success();
  }
  cut(call.count, call.dtype);
  std::byte* const own = at(call.output, displacements_[own_place_.index] * dtype_size(call.dtype));
  CollectiveCall stage = call;
  stage.op = OpCode::reduce_scatter_v;
  stage.output = own;
  stage.count = 0;
  stage.counts = counts_.data();
  stage.displacements = displacements_.data();
  stage.reduction = first_sum(call.reduction);
  FSCCL_TRY(on(*host_, stage));
  stage = call;
  stage.input = stage.output = own;
  stage.count = counts_[own_place_.index];
  stage.reduction = last_sum(call.reduction);
  if (stage.count) FSCCL_TRY(on(*lane_, stage, true));
  return gather_cut(call, own);
}

// With sums over a host that are wider than the elements. Each lane shares its part out to the
// hosts, whose sums it then gathers.
Status Hierarchy::all_reduce_wide(const CollectiveCall& call) {
  const fsccl_dtype_t wide = partial_dtype(call.dtype, call.reduction);
  const uint64_t size = dtype_size(call.dtype);
  cut(call.count, call.dtype);
  const std::vector<size_t> lane_counts = counts_, lane_displacements = displacements_;
  const uint64_t count = counts_[own_place_.index];
  std::byte* const own = at(call.output, displacements_[own_place_.index] * size);
  FSCCL_TRY(reserve_scratch(count * dtype_size(wide)));
  const fsccl_tensor_t inside = {const_cast<void*>(call.input), scratch_.data(), lane_counts.data(),
                                 call.dtype};
  ListCall stage{&inside, 1, ListKind::reduce_scatter, first_sum(call.reduction)};
  stage.received = &wide;
  FSCCL_TRY(on(*host_, stage));
  if (count) {
    counts_.assign(at_.count(), 0);
    displacements_.assign(at_.count(), 0);
    for (size_t host = 0; host < at_.count(); host++) {
      const Portion share =
          portion_of(count, static_cast<int>(host), static_cast<int>(at_.count()), size);
      displacements_[host] = share.begin;
      counts_[host] = share.count;
    }
    std::byte* const share = own + displacements_[own_place_.host] * size;
    const fsccl_tensor_t across = {scratch_.data(), share, counts_.data(), wide};
    stage = {&across, 1, ListKind::reduce_scatter, last_sum(call.reduction)};
    stage.received = &call.dtype;
    FSCCL_TRY(on(*lane_, stage, true));
    CollectiveCall gathers;
    gathers.op = OpCode::all_gather_v;
    gathers.input = share;
    gathers.output = own;
    gathers.dtype = call.dtype;
    gathers.counts = counts_.data();
    gathers.displacements = displacements_.data();
    FSCCL_TRY(on(*lane_, gathers));
  }
  counts_ = lane_counts;
  displacements_ = lane_displacements;
  return gather_cut(call, own);
}

// Gathers an array that was cut, of which each lane has its part in its final place.
Status Hierarchy::gather_cut(const CollectiveCall& call, const std::byte* own) {
  CollectiveCall stage;
  stage.op = OpCode::all_gather_v;
  stage.input = own;
  stage.output = call.output;
  stage.dtype = call.dtype;
  stage.counts = counts_.data();
  stage.displacements = displacements_.data();
  return on(*host_, stage);
}

// A rank enters the barrier of its lane when all ranks of its host have entered. So a rank that
// leaves that barrier knows that all ranks have entered, and the other ranks of its host do if each
// has a lane.
Status Hierarchy::barrier() {
  const CollectiveCall stage;  // a barrier
  FSCCL_TRY(on(*host_, stage));
  if (lane_) FSCCL_TRY(on(*lane_, stage));
  return at_.host_size() > at_.lanes() ? on(*host_, stage) : success();
}

Status Hierarchy::broadcast(const CollectiveCall& call) {
  cut(call.count, call.dtype);
  const Hosts::Place root = places_[static_cast<size_t>(call.root)];
  const bool with_root = own_place_.host == root.host;
  CollectiveCall stage = call;
  stage.root = static_cast<int>(root.index);
  if (with_root) FSCCL_TRY(on(*host_, stage));
  std::byte* const own = at(call.output, displacements_[own_place_.index] * dtype_size(call.dtype));
  stage.output = own;
  stage.count = counts_[own_place_.index];
  stage.root = static_cast<int>(root.host);
  if (stage.count) FSCCL_TRY(on(*lane_, stage));
  return with_root ? success() : gather_cut(call, own);
}

Status Hierarchy::broadcast(const ListCall& call) {
  const Hosts::Place root = places_[static_cast<size_t>(call.root)];
  const bool with_root = own_place_.host == root.host;
  if (with_root)
    FSCCL_TRY(on(*host_, ListCall{call.tensors, call.count, call.kind, FSCCL_SUM,
                                  static_cast<int>(root.index)}));
  parts_.clear();
  for (size_t t = 0; t < call.count; t++) {
    const fsccl_tensor_t& tensor = call.tensors[t];
    cut(tensor.counts[0], tensor.dtype);
    for (size_t lane = 0; lane < at_.lanes(); lane++)
      if (counts_[lane])
        parts_.push_back({lane, t, counts_[lane], tensor.dtype, tensor.dtype,
                          at(tensor.recv, displacements_[lane] * dtype_size(tensor.dtype))});
  }
  tensors_.clear();
  for (const Part& part : parts_)
    if (part.rank == own_place_.index)
      tensors_.push_back({nullptr, part.at, &part.count, part.dtype});
  if (!tensors_.empty())
    FSCCL_TRY(on(*lane_, ListCall{tensors_.data(), tensors_.size(), call.kind, FSCCL_SUM,
                                  static_cast<int>(root.host)}));
  if (with_root) return success();
  hold(Join::holders, [](const Part& part, Held& held) {
    held.holder = part.rank;
    held.own = part.at;
    return true;
  });
  return stage_list(*host_, ListKind::all_gather);
}

}  // namespace fsccl
