// The edges of a plan of slots on a device: which bytes were given back, and behind what they are
// free: a mark of the stream that used them last, and signals that peers still owe. Whoever takes
// the bytes next waits for exactly that: for what was given back in them, not for what was given
// back before or beside. One entry for each range that was given back and not taken since, so a
// planned step keeps it small.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "allocators/placement/node_memory.h"
#include "pool/device/stream_marks.h"

namespace fsccl {

class ReleasedBytes {
 public:
  // a wait ends when the word has reached its value, and words only grow
  using Waits = std::vector<cuda::CUstreamBatchMemOpParams>;

  // No byte of [begin, end) is given back already.
  void add(uint64_t begin, uint64_t end, StreamMark mark, Waits waits);
  // Returns the waits that must come before [begin, end) is used: one mark for each stream, and one
  // wait for each word. They replace the former content of the arguments.
  void needs(uint64_t begin, uint64_t end, std::vector<StreamMark>* marks, Waits* waits) const;
  void forget(uint64_t begin, uint64_t end);  // somebody has taken them
  size_t ranges() const { return ranges_.size(); }

 private:
  struct Range {
    uint64_t end;
    StreamMark mark;
    Waits waits;
  };
  using Ranges = std::pmr::map<uint64_t, Range>;  // by begin, disjoint
  void split(uint64_t at);
  // the range with these ends, else ranges_.end()
  Ranges::const_iterator find_same(uint64_t begin, uint64_t end) const;

  NodeMemory nodes_;
  Ranges ranges_{nodes_.get()};
};

}  // namespace fsccl
