// Slots that were given back while work on them may still run. Only a stream that is ordered behind
// that work may have their bytes, so they stay in use in the region until every stream is ordered
// behind it. The caller that takes a slot opens the bytes that its stream may have, places the
// slot, and closes again.
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
  // Frees in the region the slots whose work these clocks cover, those that touch [begin, end), and
  // those that have cooled for more than a step, because nothing will order their work any more.
  void open(Region& region, const StreamClock& known, uint64_t begin, uint64_t end);
  // The caller has taken [begin, end). Takes the rest of what open() freed in the region again,
  // except slots behind whose work all streams are ordered. Returns the work that may still run on
  // the bytes of [begin, end).
  StreamClock close(Region& region, const StreamClock& known_to_all, uint64_t begin, uint64_t end);
  bool touches(uint64_t begin, uint64_t end) const;
  void end_step();
  void append_differences(const StreamOrder& order, std::vector<uint64_t>* differences) const;

 private:
  struct Slot {
    uint64_t begin, end;
    StreamClock done;
    int steps = 0;  // steps that have ended since
  };
  std::vector<Slot> slots_, open_;
};

}  // namespace fsccl
