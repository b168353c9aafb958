// Decides which bytes of a part of a pool exist as memory. A good choice of offsets alone cannot
// keep the memory of an unknown step near its bound: slots that were placed before the step left
// its plan stay where they are, the free bytes lie in pieces, and a slot that fits into none of the
// pieces must lie above all others. In such a step free pieces are given back to the system. Then
// hardly more bytes exist than are live or planned, and only the range of addresses grows. Once the
// step is known, at a step boundary, the bytes of the plan exist again as a whole, and nothing more
// is given back or made.
//
// The decisions are a pure function of the history of slots, as offsets are, so they are the same
// on all ranks. The owner of the memory carries them out.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "allocators/host/byte_ranges.h"
#include "allocators/placement/collective_region.h"
#include "base/round_up.h"

namespace fsccl {

class BackedBytes {
 public:
  using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;  // [begin, end)
  struct Change {
    Ranges given_back, made;
    // The position up to which every rank must have released before the bytes are given back.
    uint64_t released = 0;
    bool empty() const { return given_back.empty() && made.empty(); }
  };

  // Memory above all other memory is made up to a multiple of `unit`. Before place() gives any
  // back, more bytes than are needed may exist: `unit` bytes or a 32nd of the needed ones,
  // whichever is more, as long as no more than `most` exist in all.
  explicit BackedBytes(uint64_t unit) : unit_(unit) {}

  uint64_t bytes() const { return backed_.bytes(); }
  uint64_t reach() const {
    return backed_.ranges().empty() ? 0 : backed_.ranges().rbegin()->second;
  }
  uint64_t whole() const { return whole_; }  // all bytes below this exist

  // Returns the change after which the bytes [begin, end) of a slot exist. If more bytes would then
  // exist than are live or planned, plus a margin, or more than `most`, the change also gives back
  // bytes of no slot, beginning with those that were given back first. `most` is at least the live
  // bytes.
  Change place(uint64_t begin, uint64_t end, CollectiveRegion& slots, uint64_t most) const;
  // Returns the change that gives back `bytes` bytes of no slot, or as many as there are, beginning
  // with those that were given back first.
  Change spare(uint64_t bytes, CollectiveRegion& slots) const;
  // Returns true if the first `whole` bytes exist, and no others.
  bool is(uint64_t whole) const { return whole_ == whole && bytes() == whole; }
  // Returns the change after which the first `whole` bytes exist, and above them only slots.
  Change mend(uint64_t whole, CollectiveRegion& slots) const;
  // Returns the number of bytes that exist after that change.
  uint64_t bytes_if_mended(uint64_t whole, CollectiveRegion& slots) const;
  // The owner reports here what it has carried out.
  void made(uint64_t begin, uint64_t end);
  void given_back(uint64_t begin, uint64_t end);

 private:
  void give(Ranges free, uint64_t bytes, CollectiveRegion& slots, Change* change) const;

  ByteRanges backed_;
  uint64_t unit_, whole_ = 0;
};

}  // namespace fsccl
