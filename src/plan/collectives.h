// The builders of the plain collectives, one algorithm a file. A collective that only moves bytes
// is described by a DataMovement: it says which rank sends which elements to which rank. A
// collective that reduces is described by a ReductionShape: it says which rank reduces which part,
// and which ranks get the result. The algorithms know nothing else of the collective:
//
//   ..._inline   The payload travels in the signals. This is for tiny calls, and takes one exchange
//                of signals.
//   ..._slots    Bytes go through the slots of the channel, in rounds. This is for small calls,
//                which take one exchange, and for memory that peers cannot touch.
//   ..._steps    Between hosts, bytes go through slots to a few ranks at a time, which forward
//                them. This is for small calls of many ranks.
//   ..._direct   Ranks read and write peers' buffers in place, so each byte is moved once. This
//                needs slots that are not mirrored.
//
// All algorithms are also right when a rank passes input and output that are the same memory, as
// far as the public header allows it: a copy from a place to itself is skipped.
#pragma once
#include <vector>

#include "plan/plan.h"

namespace fsccl {

// The caller's request. Counts are in elements, as in the public header.
struct Shape {
  int rank = 0;
  int ranks = 1;
  uint64_t count = 0;
  fsccl_dtype_t dtype = FSCCL_UINT8;
  int root = 0;
  uint64_t slot_bytes = 32768;
  bool mirrored = false;  // slots are mirrored (plan.h), also in DataMovement and ReductionShape
  // For the v forms: the elements of each rank's part, and where the parts begin in the larger
  // buffer. If these are empty, each rank has `count` elements, and the parts lie end to end.
  std::vector<uint64_t> counts, displacements;

  struct Part {
    uint64_t begin, count;  // elements
  };
  Part part(int q) const {
    const auto index = static_cast<size_t>(q);
    return counts.empty() ? Part{count * index, count} : Part{displacements[index], counts[index]};
  }
  uint64_t size() const { return dtype_size(dtype); }
  // These return the bytes of the larger buffer, and the size of the largest part.
  uint64_t whole_bytes() const;
  uint64_t largest_part() const;  // elements
  uint64_t largest_part_bytes() const { return largest_part() * size(); }
};

// Returns true if a part of a buffer ends beyond any machine's address space.
inline bool beyond_memory(uint64_t begin, uint64_t count, uint64_t element_bytes) {
  const uint64_t most = (uint64_t{1} << 47) / element_bytes;
  return begin > most || count > most - begin;
}

// The elements that one rank sends to another. A DataMovement has the flows of one rank only, so a
// plan, and the time to make it, grow with the number of ranks and not with the number of pairs.
// Buffer 0 is the input and buffer 1 the output; a broadcast has buffer 0 alone.
struct Flow {
  // Elements: `src` counts in the sender's input, `dst` in the receiver's output.
  uint64_t src = 0, dst = 0, count = 0;
};
struct DataMovement {
  const char* name = "";  // name of the collective
  int rank = 0, ranks = 1;
  fsccl_dtype_t dtype = FSCCL_UINT8;
  bool same_to_all = false;  // a rank sends the same bytes to all ranks
  bool one_buffer = false;   // a broadcast: the output is the input
  // Every rank sends to every other rank. The call then ends only when all ranks have entered, even
  // if some counts are 0.
  bool every_rank_sends = false;
  bool mirrored = false;
  // By peer: the flow to the peer, and the flow from it. Both have the flow of the rank to itself.
  std::vector<Flow> sends, receives;
  uint64_t longest = 0;  // elements of the longest flow between any two ranks
  std::vector<uint64_t> input_bytes, output_bytes;  // by rank

  const Flow& to(int peer) const { return sends[static_cast<size_t>(peer)]; }
  const Flow& from(int peer) const { return receives[static_cast<size_t>(peer)]; }
};
DataMovement all_gather_movement(const Shape&);
DataMovement gather_movement(const Shape&);
DataMovement scatter_movement(const Shape&);
DataMovement all_to_all_movement(const Shape&);
DataMovement broadcast_movement(const Shape&);

// The ranks that get the result of a part, and where in their outputs.
enum class Deliver : uint8_t {
  self,  // the rank that reduces the part gets it, at the begin of its output
  all,   // all ranks get it, at the offset that the part has in the input
  root,  // the root gets it, at the offset that the part has in the input
};
// A reduction: the part of the input that each rank reduces, and the ranks that get the result.
// Parts may overlap; then several ranks reduce the same elements.
struct ReductionShape {
  const char* name = "";
  int rank = 0, ranks = 1, root = 0;
  fsccl_dtype_t dtype = FSCCL_UINT8;
  Deliver deliver = Deliver::self;
  // Every rank that reduces, reduces the whole input. A rank's slot then holds its input once, and
  // not a part for each rank that reduces.
  bool every_rank_reduces_all = false;
  bool mirrored = false;
  std::vector<Shape::Part> parts;  // by rank
  uint64_t input_bytes = 0, output_bytes = 0;
};
ReductionShape reduction_of_reduce_scatter(const Shape&);
// Each rank reduces a part. Parts are whole cache lines (64 bytes), and as even as possible.
ReductionShape reduction_of_all_reduce(const Shape&);
// Every rank reduces everything, which takes one exchange less.
ReductionShape reduction_of_small_all_reduce(const Shape&);
ReductionShape reduction_of_reduce(const Shape&);
ReductionShape reduction_of_small_reduce(const Shape&);  // the root reduces everything

Plan move_direct(const DataMovement&);
Plan move_slots(const DataMovement&, uint64_t slot_bytes);
Plan reduce_direct(const ReductionShape&);
Plan reduce_slots(const ReductionShape&, uint64_t slot_bytes);

// Collectives in at most `steps` steps, 1 .. kMaxTicks, with as few messages in each step as
// suffice (in_steps.cpp). Slots are mirrored, and one slot has room for all bytes.
Plan all_gather_in_steps(const Shape&, int steps);
Plan reduce_scatter_in_steps(const Shape&, int steps);
Plan all_reduce_in_steps(const Shape&, int steps);
Plan broadcast_in_steps(const Shape&, int steps);
Plan barrier_in_steps(int rank, int ranks, int steps);
// Returns the smallest radix with which `steps` steps reach all ranks. In each step the number of
// ranks whose data a rank has is multiplied by the radix.
int radix_of(int ranks, int steps);

// These are for tiny collectives. The following has at most kInlineBytes: each part of an
// all_gather, the whole input of a reduce_scatter, and the vector of the others.
Plan all_gather_inline(const Shape&);
Plan reduce_scatter_inline(const Shape&);
Plan all_reduce_inline(const Shape&);
Plan broadcast_inline(const Shape&);
// All ranks move bytes: receivers pull most of the root's buffer, and the root pushes the rest.
Plan broadcast_balanced(const Shape&);
// The same with private memory, which the system reads and writes.
Plan broadcast_balanced_read(const Shape&);
// Receivers pull all of the root's buffer, which may be memory that the system reads for them.
Plan broadcast_read(const Shape&);
// Every rank reads its part of the inputs, and then the others' parts of the result.
Plan all_reduce_read(const Shape&);
Plan barrier(int rank, int ranks);

}  // namespace fsccl
