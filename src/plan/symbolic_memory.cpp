#include "plan/symbolic_memory.h"

#include <fmt/format.h>

#include <algorithm>

namespace fsccl {

bool SymbolicValue::operator==(const SymbolicValue& other) const {
  if (raw() != other.raw() || reduced != other.reduced || buffer != other.buffer ||
      offset != other.offset || any_order != other.any_order || undivided != other.undivided)
    return false;
  if (!reduced && rank != other.rank) return false;
  return raw() || (from == other.from && to == other.to);
}

bool SymbolicValue::advance(uint64_t bytes) {
  if (raw()) {
    offset += bytes;
    return true;
  }
  if (bytes % dtype_size(to) != 0) return false;
  offset += bytes / dtype_size(to) * dtype_size(from);
  return true;
}

std::string SymbolicValue::text() const {
  const std::string who =
      reduced ? fmt::format("the {}reduction over all ranks{}", undivided ? "undivided " : "",
                            any_order ? " in any order" : "")
              : fmt::format("rank {}", rank);
  const std::string conversion =
      raw() ? "" : fmt::format(", {} to {}", dtype_name(from), dtype_name(to));
  return fmt::format("{} of buffer {} from byte {} on{}", who, buffer, offset, conversion);
}

void SymbolicMemory::set_initial(uint64_t begin, uint64_t bytes, const SymbolicValue& value) {
  if (bytes > 0) ranges_[begin] = {begin, begin + bytes, value, false};
}

Result<std::vector<SymbolicRange>> SymbolicMemory::read(uint64_t begin, uint64_t bytes) const {
  std::vector<SymbolicRange> found;
  uint64_t at = begin;
  auto next = ranges_.upper_bound(begin);
  if (next != ranges_.begin()) --next;
  for (; at < begin + bytes; ++next) {
    while (next != ranges_.end() && next->second.end <= at) ++next;
    if (next == ranges_.end() || next->second.begin > at)
      return fail(FSCCL_ERR_INTERNAL, "byte {} holds nothing yet", at);
    SymbolicRange range = next->second;
    if (!range.value.advance(at - range.begin))
      return fail(FSCCL_ERR_INTERNAL, "byte {} is inside an element", at);
    range.begin = at;
    range.end = std::min(range.end, begin + bytes);
    at = range.end;
    found.push_back(range);
  }
  return found;
}

Status SymbolicMemory::cut(uint64_t at) {
  auto next = ranges_.upper_bound(at);
  if (next == ranges_.begin()) return success();
  SymbolicRange& before = std::prev(next)->second;
  if (before.begin == at || before.end <= at) return success();
  SymbolicRange tail = before;
  if (!tail.value.advance(at - before.begin))
    return fail(FSCCL_ERR_INTERNAL, "byte {} is inside an element", at);
  tail.begin = at;
  before.end = at;
  ranges_.emplace_hint(next, at, tail);
  return success();
}

Status SymbolicMemory::write(uint64_t begin, uint64_t bytes, const SymbolicValue& value,
                             bool once) {
  if (bytes == 0) return success();
  FSCCL_TRY(cut(begin));
  FSCCL_TRY(cut(begin + bytes));
  auto old = ranges_.lower_bound(begin);
  while (old != ranges_.end() && old->first < begin + bytes) {
    if (once && old->second.written)
      return fail(FSCCL_ERR_INTERNAL, "bytes {} .. {} were written before, with {}",
                  old->second.begin, old->second.end - 1, old->second.value.text());
    old = ranges_.erase(old);
  }
  ranges_[begin] = {begin, begin + bytes, value, true};
  return success();
}

}  // namespace fsccl
