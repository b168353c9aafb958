// The ranges of slots that were given back, with the work after which each range is free: the mark
// of the stream that used it last, and the waits for words that peers still have to write. The next
// use of bytes waits for exactly the work of these bytes, not for earlier uses or neighbours. There
// is an entry for each range that was given back and not taken since, so a planned step keeps the
// map small.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "allocators/placement/node_memory.h"
#include "pool/device/stream_marks.h"

namespace fsccl {

class ReleasedBytes {
 public:
  // A wait ends when the word has reached its value. Words only grow.
  using Waits = std::vector<cuda::CUstreamBatchMemOpParams>;

  // Adds a range. None of its bytes may be in the map.
  void add(uint64_t begin, uint64_t end, StreamMark mark, Waits waits);
  // Returns the waits that must come before [begin, end) is used: one mark for each stream, and one
  // wait for each word. They replace the former content of the arguments.
  void needs(uint64_t begin, uint64_t end, std::vector<StreamMark>* marks, Waits* waits) const;
  void forget(uint64_t begin, uint64_t end);  // removes bytes that were taken
  size_t ranges() const { return ranges_.size(); }

 private:
  struct Range {
    uint64_t end;
    StreamMark mark;
    Waits waits;
  };
  using Ranges = std::pmr::map<uint64_t, Range>;  // by begin, disjoint
  void split(uint64_t at);
  // Returns the range with these ends, or ranges_.end().
  Ranges::const_iterator find_same(uint64_t begin, uint64_t end) const;

  NodeMemory nodes_;
  Ranges ranges_{nodes_.get()};
};

}  // namespace fsccl
