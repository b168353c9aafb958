#include "layout/layout.h"

#include <algorithm>

#include "base/round_up.h"

namespace fsccl {
namespace {

// Byte offsets of a slot are elements times at most 8, plus alignment, and must stay far from 2^64.
constexpr uint64_t kMaxElements = uint64_t{1} << 58;

Result<uint64_t> count_elements(const std::vector<int64_t>& dims, size_t param) {
  uint64_t numel = 1;
  bool empty = false;
  for (const int64_t dim : dims) {
    if (dim < 0)
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "parameter {}: a dimension is {}; dimensions are 0 or more", param, dim);
    empty |= dim == 0;
  }
  if (empty) return uint64_t{0};
  for (const int64_t dim : dims) {
    if (__builtin_mul_overflow(numel, static_cast<uint64_t>(dim), &numel) || numel > kMaxElements)
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "parameter {}: its dimensions multiply to more than 2^58 elements", param);
  }
  return numel;
}

Status check_tie(const std::vector<ParamShape>& params, size_t param) {
  const int target = params[param].tied_to;
  if (target == -1) return success();
  if (target < 0 || static_cast<size_t>(target) >= param)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "parameter {} is tied to {}; a parameter is tied to {}, or to -1 for none", param,
                target,
                param == 0 ? "an earlier one, of which the first has none"
                           : fmt::format("an earlier one (0 .. {})", param - 1));
  const ParamShape& owner = params[static_cast<size_t>(target)];
  if (owner.tied_to != -1)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "parameter {} is tied to {}, which is itself tied to {}: tie both to {}", param,
                target, owner.tied_to, owner.tied_to);
  if (owner.dims != params[param].dims)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "parameter {} is tied to {}, but their dimensions differ", param, target);
  if (owner.block_rows != params[param].block_rows ||
      owner.block_columns != params[param].block_columns)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "parameter {} is tied to {}, but their blocks differ",
                param, target);
  return success();
}

Status check_block(fsccl_layout_t kind, const ParamShape& shape, size_t param) {
  if (kind == FSCCL_LAYOUT_RAGGED || (shape.block_rows <= 1 && shape.block_columns <= 1))
    return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "parameter {} names blocks of {} x {} elements, which only FSCCL_LAYOUT_RAGGED keeps "
              "whole: use it, or name no block",
              param, shape.block_rows, shape.block_columns);
}

}  // namespace

Result<Layout> Layout::make(fsccl_layout_t kind, std::vector<ParamShape> params, int ranks) {
  if (kind != FSCCL_LAYOUT_FLAT && kind != FSCCL_LAYOUT_PER_PARAM && kind != FSCCL_LAYOUT_RAGGED)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "layout {} is not a fsccl_layout_t: it is flat ({}), per_param ({}) or ragged ({})",
                static_cast<int>(kind), static_cast<int>(FSCCL_LAYOUT_FLAT),
                static_cast<int>(FSCCL_LAYOUT_PER_PARAM), static_cast<int>(FSCCL_LAYOUT_RAGGED));
  if (ranks < 1)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "a layout over {} ranks; at least 1 is needed", ranks);
  Layout layout;
  layout.kind_ = kind;
  layout.ranks_ = ranks;
  for (size_t i = 0; i < params.size(); ++i) {
    FSCCL_ASSIGN(const uint64_t numel, count_elements(params[i].dims, i));
    FSCCL_TRY(check_tie(params, i));
    FSCCL_TRY(check_block(kind, params[i], i));
    const bool is_tied = params[i].tied_to != -1;
    layout.numel_.push_back(numel);
    layout.rows_.push_back(params[i].dims.empty() ? 1 : static_cast<uint64_t>(params[i].dims[0]));
    layout.owner_.push_back(is_tied ? static_cast<size_t>(params[i].tied_to) : i);
    layout.flat_begin_.push_back(layout.total_);
    if (kind == FSCCL_LAYOUT_RAGGED)
      layout.grids_.push_back(
          is_tied ? BlockGrid{}
                  : BlockGrid::make(params[i].dims, params[i].block_rows, params[i].block_columns));
    if (is_tied) continue;
    layout.total_ += numel;
    if (layout.total_ > kMaxElements)
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "the first {} parameters hold more than 2^58 elements; make smaller units",
                  i + 1);
  }
  layout.flat_total_ = layout.total_;
  if (kind == FSCCL_LAYOUT_RAGGED) layout.ragged_ = plan_ragged(layout.grids_, ranks);
  return layout;
}

Layout Layout::only(size_t param) const {
  Layout one;
  one.kind_ = kind_;
  one.ranks_ = ranks_;
  one.numel_ = {numel_[param]};
  one.rows_ = {rows_[param]};
  one.flat_begin_ = {flat_begin_[param]};
  one.owner_ = {0};
  one.total_ = numel_[param];
  one.flat_total_ = flat_total_;
  if (kind_ != FSCCL_LAYOUT_RAGGED) return one;
  one.grids_ = {grids_[param]};
  one.ragged_.cuts = ragged_.cuts;
  one.ragged_.params = {ragged_.params[param]};
  for (int rank = 0; rank < ranks_; rank++)
    one.ragged_.largest = std::max(one.ragged_.largest, one.piece(rank, 0).count);
  return one;
}

Piece Layout::piece(int rank, size_t param) const {
  const size_t own = owner_[param];
  const auto r = static_cast<uint64_t>(rank);
  const auto n = static_cast<uint64_t>(ranks_);
  uint64_t begin = 0, end = 0;
  if (kind_ == FSCCL_LAYOUT_RAGGED) {
    const RaggedPlan::Param& cut = ragged_.params[own];
    if (r < cut.first_rank || r - cut.first_rank >= cut.ranks) return {};
    const uint64_t* const ends = &ragged_.cuts[cut.first_cut + r - cut.first_rank];
    begin = ends[0];
    end = ends[1];
    if (begin == end) return {};
  } else if (kind_ == FSCCL_LAYOUT_FLAT) {
    const uint64_t part = ceil_div(flat_total_, n), first = flat_begin_[own],
                   last = first + numel_[own];
    begin = std::max(r * part, first);
    end = std::min((r + 1) * part, last);
    if (begin >= end) return {};
    begin -= first;
    end -= first;
  } else {
    const uint64_t rows = rows_[own];
    if (rows == 0) return {};
    const uint64_t chunk = ceil_div(rows, n), row = numel_[own] / rows;
    begin = std::min(r * chunk, rows) * row;
    end = std::min(r * chunk + chunk, rows) * row;
    if (begin >= end) return {};
  }
  return {begin, end - begin};
}

uint64_t Layout::shard_total(int rank) const {
  uint64_t sum = 0;
  for (size_t i = 0; i < size(); ++i)
    if (!tied(i)) sum += piece(rank, i).count;
  return sum;
}

// Flat and per_param: no rank holds more of any parameter set than rank 0.
uint64_t Layout::largest_shard() const {
  return kind_ == FSCCL_LAYOUT_RAGGED ? ragged_.largest : shard_total(0);
}

uint64_t Layout::padding_of(uint64_t largest) const {
  uint64_t padded = 0;
  if (__builtin_mul_overflow(largest, static_cast<uint64_t>(ranks_), &padded))
    padded = ~uint64_t{0};
  return padded > total_ ? padded - total_ : 0;
}

uint64_t Layout::padding() const { return padding_of(largest_shard()); }

uint64_t Layout::padding_bound() const {
  if (kind_ == FSCCL_LAYOUT_RAGGED)
    return padding_of(block_bound(grids_, static_cast<uint64_t>(ranks_)));
  if (kind_ == FSCCL_LAYOUT_FLAT) return 0;
  std::vector<BlockGrid> rows;
  for (size_t i = 0; i < size(); ++i)
    if (!tied(i) && numel_[i] > 0)
      rows.push_back({1, rows_[i], numel_[i] / rows_[i], 1, numel_[i] / rows_[i]});
  return padding_of(block_bound(rows, static_cast<uint64_t>(ranks_)));
}

SlotMap make_slot_map(const Layout& layout, const std::vector<size_t>& element_size,
                      uint64_t alignment) {
  SlotMap map;
  map.offset.assign(layout.size(), SlotMap::kAbsent);
  uint64_t end = 0;
  for (size_t i = 0; i < layout.size(); ++i) {
    if (layout.tied(i)) {
      map.offset[i] = map.offset[layout.owner(i)];
      continue;
    }
    if (element_size[i] == 0) continue;
    map.offset[i] = round_up(end, layout.kind() == FSCCL_LAYOUT_FLAT ? element_size[i] : alignment);
    end = map.offset[i] + layout.numel(i) * element_size[i];
  }
  map.bytes = round_up(end, alignment);
  map.slots = {map.bytes};
  return map;
}

SlotMap make_slots_by_parameter(const Layout& layout, const std::vector<size_t>& element_size,
                                uint64_t alignment) {
  SlotMap map;
  map.by_parameter = true;
  map.slots.assign(layout.size(), 0);
  map.offset.assign(layout.size(), SlotMap::kAbsent);
  for (size_t i = 0; i < layout.size(); ++i) {
    if (element_size[layout.owner(i)] == 0) continue;
    map.offset[i] = 0;
    if (layout.tied(i)) continue;
    map.slots[i] = round_up(layout.numel(i) * element_size[i], alignment);
    map.bytes += map.slots[i];
  }
  return map;
}

}  // namespace fsccl
