// Ranges of bytes with the history position at which they were last given back. Bytes that were
// never given back have position 0. There is one entry for each distinct range, and a planned step
// gives back the same ranges again and again, so the history stays small.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

#include "allocators/placement/node_memory.h"

namespace fsccl {

class ByteHistory {
 public:
  ByteHistory() = default;
  ByteHistory(const ByteHistory&) = default;
  ByteHistory& operator=(const ByteHistory&) = default;

  void set(uint64_t begin, uint64_t end, uint64_t position) {
    if (begin >= end) return;
    split(begin);
    split(end);
    ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
    ranges_.emplace(begin, Range{end, position});
  }
  uint64_t latest(uint64_t begin, uint64_t end) const {
    uint64_t position = 0;
    auto range = ranges_.upper_bound(begin);
    if (range != ranges_.begin() && std::prev(range)->second.end > begin) --range;
    for (; range != ranges_.end() && range->first < end; ++range)
      position = std::max(position, range->second.position);
    return position;
  }

 private:
  struct Range {
    uint64_t end, position;
  };
  // Makes `at` a border between ranges.
  void split(uint64_t at) {
    auto range = ranges_.lower_bound(at);
    if (range == ranges_.begin()) return;
    --range;
    if (range->second.end <= at) return;
    ranges_.emplace(at, range->second);
    range->second.end = at;
  }

  NodeMemory nodes_;
  std::pmr::map<uint64_t, Range> ranges_{nodes_.get()};  // by begin, disjoint
};

}  // namespace fsccl
