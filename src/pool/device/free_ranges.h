// The free bytes of one stream, or of all streams, as ranges. A request takes the smallest range
// that fits. Ranges that touch are joined; the joined range is free since the later of their marks.
// All operations take O(log n).
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
  // Returns the best place for `bytes`: in the smallest range that has room for them with the
  // alignment, and in the lowest of such ranges. Sets *range_bytes to the size of the range.
  std::optional<uint64_t> find(uint64_t bytes, uint64_t alignment, uint64_t* range_bytes) const;
  // Removes the free bytes of [begin, end). Returns their latest mark; 0 if there were none.
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
