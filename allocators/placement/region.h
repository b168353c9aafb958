// A best-fit allocator of offsets in [0, capacity), without memory behind them. The same calls give
// the same offsets on every rank. A call mostly takes O(log n).
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "allocators/placement/node_memory.h"

namespace fsccl {

class Region {
 public:
  explicit Region(uint64_t capacity) : capacity_(capacity) {}
  Region(const Region&) = default;
  Region& operator=(const Region&) = default;
  void set_capacity(uint64_t capacity) { capacity_ = capacity; }  // not below top()
  // Takes bytes in the smallest gap that holds them, of equal gaps the lowest, or else above all
  // blocks. Returns nullopt if they do not fit. `bytes` is not 0, and `alignment` is a power of
  // two.
  std::optional<uint64_t> alloc(uint64_t bytes, uint64_t alignment);
  // Takes exactly [offset, offset + bytes). Returns false if any of it is in use or outside.
  bool take(uint64_t offset, uint64_t bytes);
  // Frees the block at `offset` and returns its size; nullopt if no block begins there.
  std::optional<uint64_t> free(uint64_t offset);
  std::optional<uint64_t> size_of(uint64_t offset) const;
  uint64_t live() const { return live_; }
  uint64_t top() const;  // end of the highest block
  size_t blocks() const { return used_.size(); }
  const std::pmr::map<uint64_t, uint64_t>& used() const { return used_; }  // offset -> bytes

 private:
  void occupy_gap(uint64_t gap_offset, uint64_t offset, uint64_t bytes);
  void occupy_above(uint64_t offset, uint64_t bytes);
  void add_gap(uint64_t offset, uint64_t bytes);
  void remove_gap(uint64_t offset);

  uint64_t capacity_;
  uint64_t live_ = 0;
  NodeMemory nodes_;
  std::pmr::map<uint64_t, uint64_t> used_{nodes_.get()};  // offset -> bytes
  // Gaps below top(): offset -> bytes.
  std::pmr::map<uint64_t, uint64_t> gaps_{nodes_.get()};
  std::pmr::set<std::pair<uint64_t, uint64_t>> gaps_by_size_{nodes_.get()};  // (bytes, offset)
};

}  // namespace fsccl
