// Slots that were given back while work on them may still run: only a stream that is ordered behind
// that work may have their bytes, so they stay in use in the region until every stream is. Whoever
// takes a slot opens what its stream may have, places, and closes again.
#pragma once
#include <cstdint>
#include <vector>

#include "allocators/placement/region.h"
#include "allocators/placement/stream_order.h"

namespace fsccl {

class CoolingSlots {
 public:
  bool empty() const { return slots_.empty(); }
  void add(uint64_t begin, uint64_t end, const StreamClock& done) {
    slots_.push_back({begin, end, done});
  }
  // Frees in the region what these clocks cover, what touches [begin, end), and what has cooled for
  // more than a step: nothing will order that any more.
  void open(Region& region, const StreamClock& known, uint64_t begin, uint64_t end);
  // [begin, end) has been taken; the rest of what was open, unless all streams are ordered behind
  // it, is closed. Returns what was still to be done on the bytes that were taken.
  StreamClock close(Region& region, const StreamClock& known_to_all, uint64_t begin, uint64_t end);
  bool touches(uint64_t begin, uint64_t end) const;
  void end_step();
  void append_differences(const StreamOrder& order, std::vector<uint64_t>* differences) const;

 private:
  struct Slot {
    uint64_t begin, end;
    StreamClock done;
    int steps = 0;  // that ended since
  };
  std::vector<Slot> slots_, open_;
};

}  // namespace fsccl
