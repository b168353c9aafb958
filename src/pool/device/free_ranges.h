// Free bytes of one stream's, or of everybody's, as ranges of which the smallest that fits is
// taken. Neighbours are one range, free since the later of the two. O(log n).
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "allocators/placement/node_memory.h"

namespace fsccl {

class FreeRanges {
 public:
  struct Range {
    uint64_t end = 0;
    uint64_t sequence = 0;  // the stream's mark since which it is free
  };
  using ByBegin = std::pmr::map<uint64_t, Range>;

  FreeRanges() = default;
  FreeRanges(const FreeRanges&) = delete;

  void add(uint64_t begin, uint64_t end, uint64_t sequence);
  // Where `bytes` fit best: in the smallest range that holds them aligned, the lowest of those.
  // Sets the size of the range.
  std::optional<uint64_t> find(uint64_t bytes, uint64_t alignment, uint64_t* range_bytes) const;
  // Takes what it has of [begin, end); the latest mark of that, 0 when it has none.
  uint64_t remove(uint64_t begin, uint64_t end);
  const ByBegin& ranges() const { return ranges_; }

 private:
  void insert(uint64_t begin, const Range& range);
  ByBegin::iterator erase(ByBegin::iterator range);

  NodeMemory nodes_;
  ByBegin ranges_{nodes_.get()};
  std::pmr::set<std::pair<uint64_t, uint64_t>> by_size_{nodes_.get()};  // (bytes, begin)
};

}  // namespace fsccl
