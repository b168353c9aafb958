// Cooling slots were given back while work on them may still run. Only a stream that is ordered
// behind that work may get their bytes. Therefore the region keeps these bytes as used until every
// stream is ordered behind the work. To take a slot, the caller frees the bytes that the slot's
// stream may get by open(), places the slot, and takes the other bytes again by close().
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
  // Frees in the region the bytes of the slots whose work `known` covers, of those that touch
  // [begin, end), and of those that have cooled for more than a step, because nothing is going to
  // order their work any more.
  void open(Region& region, const StreamClock& known, uint64_t begin, uint64_t end);
  // To be called when the caller has taken [begin, end). Takes in the region again what open() has
  // freed, except [begin, end) and the slots behind whose work all streams are ordered. Returns the
  // work that may still run on bytes of [begin, end).
  StreamClock close(Region& region, const StreamClock& known_to_all, uint64_t begin, uint64_t end);
  bool touches(uint64_t begin, uint64_t end) const;
  void end_step();
  void append_differences(const StreamOrder& order, std::vector<uint64_t>* differences) const;

 private:
  struct Slot {
    uint64_t begin, end;
    StreamClock done;
    int steps = 0;  // steps that have ended since it was given back
  };
  std::vector<Slot> slots_, open_;
};

}  // namespace fsccl
