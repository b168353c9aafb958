// Which bytes of a part exist as memory. Offsets alone cannot serve a step that nobody knew near its bound: what was placed before
// it left the plan stays, free bytes lie in pieces, and a slot that fits none of them goes above. Then pieces that are free are
// given back to the system, so that what exists is what is live, or planned, and a little more; what grows is the range of
// addresses. When the step is known, at a step boundary, the plan's bytes exist again as a whole, and nothing is given back or made
// any more.
//
// A pure function of the history of slots, as their offsets are: alike on all ranks. Whose memory it is does what it says.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "allocators/host/byte_ranges.h"
#include "allocators/pool/collective_region.h"
#include "base/round_up.h"

namespace fsccl {

class BackedBytes {
 public:
  using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;  // [begin, end)
  struct Change {
    Ranges given_back, made;
    uint64_t released = 0;  // position that every rank must have released before bytes are given back
  };

  // Memory comes in multiples of `unit` where nothing lies above, and so much may be too much.
  explicit BackedBytes(uint64_t unit) : unit_(unit) {}

  uint64_t bytes() const { return backed_.bytes(); }
  uint64_t reach() const { return backed_.ranges().empty() ? 0 : backed_.ranges().rbegin()->second; }
  uint64_t whole() const { return whole_; }  // all bytes below exist

  // What lets [begin, end) of a slot exist: as far as there would be more than is live or planned, and a margin, bytes of no slot
  // go, those that were given back first.
  Change place(uint64_t begin, uint64_t end, CollectiveRegion& slots) const;
  // It is not the region's extent, no more and no less, that exists; and what makes that exist, and above it what slots have.
  bool torn(const CollectiveRegion& slots) const { return whole_ != extent_of(slots) || bytes() != whole_; }
  Change mend(CollectiveRegion& slots) const;
  Change extend(uint64_t extent) const { return {.given_back = {}, .made = backed_.missing(0, extent)}; }
  Ranges more_than(const BackedBytes& before) const;
  void made(uint64_t begin, uint64_t end);
  void given_back(uint64_t begin, uint64_t end);

 private:
  uint64_t extent_of(const CollectiveRegion& slots) const { return round_up(slots.extent(), unit_); }

  ByteRanges backed_;
  uint64_t unit_, whole_ = 0;
};

}  // namespace fsccl
