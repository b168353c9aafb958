// A set of bytes, kept as disjoint ranges [begin, end). An arena notes in it what has been
// reserved.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace fsccl {

class ByteRanges {
 public:
  uint64_t bytes() const { return bytes_; }
  const std::map<uint64_t, uint64_t>& ranges() const { return ranges_; }  // begin -> end

  // Returns the parts of [begin, end) that are not in the set.
  std::vector<std::pair<uint64_t, uint64_t>> missing(uint64_t begin, uint64_t end) const {
    std::vector<std::pair<uint64_t, uint64_t>> result;
    auto range = ranges_.upper_bound(begin);
    if (range != ranges_.begin()) begin = std::max(begin, std::prev(range)->second);
    for (; begin < end && range != ranges_.end() && range->first < end; ++range) {
      result.emplace_back(begin, range->first);
      begin = range->second;
    }
    if (begin < end) result.emplace_back(begin, end);
    return result;
  }
  // Adds [begin, end), of which no byte may be in the set.
  void add(uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    bytes_ += end - begin;
    auto next = ranges_.lower_bound(begin);
    if (next != ranges_.end() && next->first == end) {
      end = next->second;
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin() && std::prev(next)->second == begin) {
      std::prev(next)->second = end;
    } else {
      ranges_.emplace(begin, end);
    }
  }
  void remove(uint64_t begin, uint64_t end) {
    auto range = ranges_.upper_bound(begin);
    if (range != ranges_.begin()) --range;
    while (range != ranges_.end() && range->first < end) {
      const auto [from, to] = *range;
      if (to <= begin) {
        ++range;
        continue;
      }
      range = ranges_.erase(range);
      bytes_ -= std::min(to, end) - std::max(from, begin);
      if (from < begin) ranges_.emplace(from, begin);
      if (to > end) ranges_.emplace(end, to);
    }
  }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // begin -> end
  uint64_t bytes_ = 0;
};

}  // namespace fsccl
