#include "allocators/placement/region.h"

#include <algorithm>

namespace fsccl {
namespace {

// Rounds up to a multiple of `alignment`, a power of two. Returns nullopt if the result does not
// fit into 64 bits.
std::optional<uint64_t> align_up(uint64_t value, uint64_t alignment) {
  const uint64_t rest = value & (alignment - 1);
  if (rest == 0) return value;
  const uint64_t step = alignment - rest;
  if (value > UINT64_MAX - step) return std::nullopt;
  return value + step;
}

}  // namespace

std::optional<uint64_t> Region::alloc(uint64_t bytes, uint64_t alignment) {
  if (bytes == 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) return std::nullopt;
  // Goes through the gaps that are large enough, in the order of size, then offset. A gap may still
  // be too small because its begin has to be aligned.
  for (auto gap = gaps_by_size_.lower_bound({bytes, 0}); gap != gaps_by_size_.end(); ++gap) {
    const auto [gap_bytes, gap_offset] = *gap;
    const std::optional<uint64_t> offset = align_up(gap_offset, alignment);
    if (!offset || *offset - gap_offset > gap_bytes - bytes) continue;
    occupy_gap(gap_offset, *offset, bytes);
    return offset;
  }
  const std::optional<uint64_t> offset = align_up(top(), alignment);
  if (!offset || *offset > capacity_ || bytes > capacity_ - *offset) return std::nullopt;
  occupy_above(*offset, bytes);
  return offset;
}

bool Region::take(uint64_t offset, uint64_t bytes) {
  if (bytes == 0 || offset > capacity_ || bytes > capacity_ - offset) return false;
  if (offset >= top()) {
    occupy_above(offset, bytes);
    return true;
  }
  auto gap = gaps_.upper_bound(offset);
  if (gap == gaps_.begin()) return false;
  --gap;
  const uint64_t before = offset - gap->first;
  if (before > gap->second || bytes > gap->second - before) return false;
  occupy_gap(gap->first, offset, bytes);
  return true;
}

std::optional<uint64_t> Region::free(uint64_t offset) {
  const auto block = used_.find(offset);
  if (block == used_.end()) return std::nullopt;
  const uint64_t bytes = block->second;
  const bool highest = std::next(block) == used_.end();
  used_.erase(block);
  live_ -= bytes;

  uint64_t begin = offset, end = offset + bytes;
  auto after = gaps_.lower_bound(offset);
  if (after != gaps_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      begin = before->first;
      remove_gap(before->first);
    }
  }
  if (after != gaps_.end() && after->first == end) {
    end += after->second;
    remove_gap(after->first);
  }
  // The free space above the highest block is not kept as a gap.
  if (!highest) add_gap(begin, end - begin);
  return bytes;
}

std::optional<uint64_t> Region::size_of(uint64_t offset) const {
  const auto block = used_.find(offset);
  if (block == used_.end()) return std::nullopt;
  return block->second;
}

uint64_t Region::top() const {
  if (used_.empty()) return 0;
  const auto last = std::prev(used_.end());
  return last->first + last->second;
}

void Region::occupy_gap(uint64_t gap_offset, uint64_t offset, uint64_t bytes) {
  const uint64_t gap_end = gap_offset + gaps_.at(gap_offset);
  remove_gap(gap_offset);
  if (offset > gap_offset) add_gap(gap_offset, offset - gap_offset);
  if (gap_end > offset + bytes) add_gap(offset + bytes, gap_end - offset - bytes);
  used_.emplace(offset, bytes);
  live_ += bytes;
}

void Region::occupy_above(uint64_t offset, uint64_t bytes) {
  const uint64_t end = top();
  if (offset > end) add_gap(end, offset - end);
  used_.emplace(offset, bytes);
  live_ += bytes;
}

void Region::add_gap(uint64_t offset, uint64_t bytes) {
  gaps_.emplace(offset, bytes);
  gaps_by_size_.emplace(bytes, offset);
}

void Region::remove_gap(uint64_t offset) {
  const auto gap = gaps_.find(offset);
  gaps_by_size_.erase({gap->second, offset});
  gaps_.erase(gap);
}

}  // namespace fsccl
